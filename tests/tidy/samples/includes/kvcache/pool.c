#include "kvcache/pool.h"
#include "base/error.h"
#include "sys/log.h" /* bite */
#include "proto/wire.h" /* bite */
#include "proto/msg.h"
#include <openssl/evp.h>
#include <openssl/ssl.h> /* bite */
