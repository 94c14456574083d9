int printf(const char *, ...); int f(void); int f(void) { return printf("x"); }
