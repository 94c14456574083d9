#include "router/core/policy.h"
#include "sys/log.h"
#include "net/rpc.h"
#include <microhttpd.h>
#include "decode-worker/core/decode.h" /* bite */
#include "nowhere/x.h" /* bite */
