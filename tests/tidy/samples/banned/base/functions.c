void f(char *out, const char *in)
{
    strcpy(out, in); /* bite */
    strcat(out, in); /* bite */
    sprintf(out, "%s", in); /* bite */
    gets(out); /* bite */
    x = atoi(in); /* bite */
    strtok(out, in); /* bite */
    p = alloca(10); /* bite */
    x = rand (); /* bite */
    system(in); /* bite */
    popen(in, "r"); /* bite */
    snprintf(out, 3, "%s", in);
    brand(1);
    x = strand(2) + my_atoi(in) + s->rand(3) + s.system(4);
    puts("strcpy(a, b) in a string");
    /* strcpy(a, b) in a comment */
}
#pragma GCC target("avx2") /* bite */
__attribute__((target("avx512f"))) void g(void); /* bite */
