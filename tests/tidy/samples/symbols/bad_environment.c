char *getenv(const char *); char *f(void); char *f(void) { return getenv("X"); }
