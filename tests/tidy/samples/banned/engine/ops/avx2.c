__attribute__((target("avx2"))) void g(void);
