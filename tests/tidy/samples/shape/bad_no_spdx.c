/* A file without a licence line. */
int x;
