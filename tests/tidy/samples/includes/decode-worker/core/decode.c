#include "worker/core/sched.h"
#include "kvtransfer/core/sink.h"
#include "router/core/policy.h" /* bite */
#include "prefill-worker/core/prefill.h" /* bite */
