double exp(double); double f(double x); double f(double x) { return exp(x); }
