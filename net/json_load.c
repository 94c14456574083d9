/* json_load.c - see json_load.h.
 * jansson takes memory through take() and gives it back through give(). While this thread reads, what it holds stands in a set; when memory
 * runs out, all of that is freed and jansson is left by longjmp (it holds no lock and keeps no state between calls). Otherwise both are plain
 * malloc and free, so memory may go either way between jansson and others, and what was read belongs to its owner as ever.
 * The set: open addressing over the addresses, a freed one leaves a mark, and it is made anew when half of it is in use.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/json_load.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>

#define SET_MIN 64u

struct reading {
    jmp_buf out;
    void **slot; /* NULL: never used; &freed: was */
    size_t cap, used, held;
};

static _Thread_local struct reading *reading; /* of this thread; NULL: it reads nothing */
static char freed;

static size_t place(const struct reading *r, const void *p)
{
    uint64_t h = (uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> 32) & (r->cap - 1);
}

static void put(struct reading *r, void *p)
{
    size_t i = place(r, p);
    while (r->slot[i] != NULL)
        i = (i + 1) & (r->cap - 1);
    r->slot[i] = p;
    r->used++;
    r->held++;
}

static bool make_room(struct reading *r)
{
    struct reading old = {.slot = r->slot, .cap = r->cap};
    if ((r->used + 1) * 2 <= r->cap)
        return true;
    size_t cap = SET_MIN;
    while (cap < (r->held + 1) * 4)
        cap *= 2;
    void **slot = calloc(cap, sizeof *slot);
    if (slot == NULL)
        return false;
    r->slot = slot;
    r->cap = cap;
    r->used = r->held = 0;
    for (size_t i = 0; i < old.cap; i++)
        if (old.slot[i] != NULL && old.slot[i] != &freed)
            put(r, old.slot[i]);
    free(old.slot);
    return true;
}

static void *take(size_t n)
{
    struct reading *r = reading;
    void *p = r == NULL || make_room(r) ? malloc(n) : NULL;
    if (r != NULL && p == NULL)
        longjmp(r->out, 1);
    if (r != NULL)
        put(r, p);
    return p;
}

static void give(void *p)
{
    struct reading *r = reading;
    if (r != NULL && p != NULL && r->cap > 0) {
        size_t i = place(r, p);
        while (r->slot[i] != NULL && r->slot[i] != p)
            i = (i + 1) & (r->cap - 1);
        if (r->slot[i] == p) {
            r->slot[i] = &freed;
            r->held--;
        }
    }
    free(p);
}

static void set_up(void)
{
    json_set_alloc_funcs(take, give);
}

kvs_status net_json_load(const void *text, size_t n, size_t flags, json_error_t *e, json_t **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct reading r = {.cap = 0};
    (void)pthread_once(&once, set_up);
    KVS_ASSERT(reading == NULL);
    *out = NULL;
    if (setjmp(r.out) != 0) {
        reading = NULL;
        for (size_t i = 0; i < r.cap; i++)
            if (r.slot[i] != NULL && r.slot[i] != &freed)
                free(r.slot[i]);
        free(r.slot);
        return KVS_SELF_NOMEM;
    }
    reading = &r;
    json_t *o = json_loadb(text, n, flags, e);
    reading = NULL;
    free(r.slot);
    *out = o;
    return o != NULL ? KVS_OK : KVS_REQ_INVALID;
}
