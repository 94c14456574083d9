void f(void)
{
    system("true");
    strcpy(a, b); /* bite */
}
