long time(long *); long f(void); long f(void) { return time(0); }
