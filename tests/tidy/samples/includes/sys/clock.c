#include "base/error.h"
#include "sys/clock.h"
#include <time.h>
#include "proto/msg.h" /* bite */
