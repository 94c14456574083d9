int rand(void); int f(void); int f(void) { return rand(); }
