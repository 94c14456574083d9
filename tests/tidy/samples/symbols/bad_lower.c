void kvs_log(void); void f(void); void f(void) { kvs_log(); }
