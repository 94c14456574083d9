#include "kvtransfer/core/plan.h"
#include "kvtransfer/port.h" /* bite */
#include "kvcache/layout.h"
#include "engine/engine.h" /* bite */
#include "sys/clock.h" /* bite */
#include <xxhash.h>
#include <ucp/api/ucp.h> /* bite */
