#include "sys/log.h"
#include "router/core/policy.h"
#include <stdio.h>
