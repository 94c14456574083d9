/* failing_alloc.c - see failing_alloc.h. Only calls made by the code under test pass through here: --wrap works at link
 * time.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/kvcache/failing_alloc.h"

#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t n);

static bool armed;
static int left;

static bool refuse(void)
{
    return armed && left-- <= 0;
}

void failing_alloc_arm(int calls_before_failure)
{
    left = calls_before_failure;
    armed = true;
}

void failing_alloc_disarm(void)
{
    armed = false;
}

void *__wrap_malloc(size_t n)
{
    return refuse() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t count, size_t n)
{
    return refuse() ? NULL : __real_calloc(count, n);
}
