/* clock.c - the clocks, and random bits from the kernel.
 * Deadlines, timers and measurements use CLOCK_MONOTONIC: it never jumps. Cores get the time as an argument; only edges
 * call these. The kernel's random numbers name things that must differ between processes (epochs, nonces); whatever has to
 * be repeatable uses base/rng.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sys/clock.h"

#include "base/error.h"
#include <errno.h>
#include <sys/random.h>
#include <time.h>

uint64_t kvs_now_ns(void)
{
    struct timespec ts;
    KVS_ASSERT(clock_gettime(CLOCK_MONOTONIC, &ts) == 0);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t kvs_now_us(void)
{
    return kvs_now_ns() / 1000;
}

uint64_t kvs_wall_s(void)
{
    struct timespec ts;
    KVS_ASSERT(clock_gettime(CLOCK_REALTIME, &ts) == 0);
    return (uint64_t)ts.tv_sec;
}

void kvs_sleep_us(uint64_t us)
{
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};
    while (nanosleep(&ts, &ts) != 0 && errno == EINTR) {
    }
}

uint64_t kvs_random_u64(void)
{
    uint64_t v = 0;
    ssize_t n;
    do {
        n = getrandom(&v, sizeof v, 0); /* at most 256 bytes: never partial */
    } while (n < 0 && errno == EINTR);
    KVS_ASSERT(n == (ssize_t)sizeof v);
    return v;
}
