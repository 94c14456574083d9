#include "base/text.h"
#include "helper.h"
#include <string.h>
#include <stdio.h> /* bite */
#include <time.h> /* bite */
#include <threads.h> /* bite */
#include <pthread.h> /* bite */
#include "sys/clock.h" /* bite */
/* #include "sys/clock.h" */
