/* nomem.c - see nomem.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/nomem.h"

#include <stdatomic.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
char *__real_strdup(const char *text);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);
char *__wrap_strdup(const char *text);
void *__wrap_aligned_alloc(size_t align, size_t n);

static atomic_bool armed, fired;
static atomic_int_least64_t left, seen, live;
static bool (*where)(void);

void tst_nomem_arm(int64_t n)
{
    atomic_store(&left, n);
    atomic_store(&seen, 0);
    atomic_store(&fired, false);
    atomic_store(&armed, true);
}

bool tst_nomem_disarm(void)
{
    atomic_store(&armed, false);
    return atomic_load(&fired);
}

bool tst_nomem_fired(void)
{
    return atomic_load(&fired);
}

int64_t tst_nomem_seen(void)
{
    return atomic_load(&seen);
}

int64_t tst_nomem_live(void)
{
    return atomic_load(&live);
}

void tst_nomem_where(bool (*here)(void))
{
    where = here;
}

static bool fails(void)
{
    if (!atomic_load(&armed) || (where && !where()))
        return false;
    atomic_fetch_add(&seen, 1);
    if (atomic_fetch_sub(&left, 1) != 0)
        return false;
    atomic_store(&fired, true);
    return true;
}

static void *count(void *p)
{
    if (p)
        atomic_fetch_add(&live, 1);
    return p;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : count(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : count(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n)
{
    if (fails())
        return NULL;
    void *grown = __real_realloc(p, n);
    return p ? grown : count(grown);
}

void __wrap_free(void *p)
{
    if (p)
        atomic_fetch_sub(&live, 1);
    __real_free(p);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : count(__real_strdup(text));
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : count(__real_aligned_alloc(align, n));
}

void *tst_nomem_hook_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *tst_nomem_hook_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

void tst_nomem_hook_free(void *p)
{
    __real_free(p);
}
