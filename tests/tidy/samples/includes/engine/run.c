#include "kvcache/layout.h"
#include "kvcache/block_table.h"
#include "kvcache/pool.h" /* bite */
#include "sys/thread.h"
#include "model/gguf.h"
#include "kvtransfer/port.h" /* bite */
#include "worker/core/seq.h" /* bite */
#include <immintrin.h>
