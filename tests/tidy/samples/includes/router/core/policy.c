#include "router/core/policy.h"
#include "base/map.h"
#include "proto/msg.h"
#include "proto/frame.h" /* bite */
#include "cluster/core/registry.h"
#include "cluster/discovery.h" /* bite */
#include "router/edge/http.h" /* bite */
#include "sys/log.h" /* bite */
#include <math.h>
#include <xxhash.h> /* bite */
#include <stdio.h> /* bite */
#include HEADER /* bite */
