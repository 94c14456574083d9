/* kernel.c - clock, event queue, random numbers.
 * The queue is a binary heap ordered by (time, order of posting): equal times keep their order, so runs are reproducible.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/world.h"

#include <stdlib.h>
#include <string.h>

/* --- queue --- */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static void *grown(void *p, size_t *cap, size_t size)
{
    *cap = *cap != 0 ? *cap * 2 : 256;
    p = realloc(p, *cap * size);
    KVS_ASSERT(p != NULL);
    return p;
}

void sim_post(struct sim *s, uint64_t at_us, const struct sim_event *e)
{
    if (s->heap_count == s->heap_cap)
        s->heap = grown(s->heap, &s->heap_cap, sizeof *s->heap);
    struct sim_event n = *e;
    n.at_us = at_us > s->now_us ? at_us : s->now_us;
    n.order = s->order++;
    n.first_us = e->first_us != 0 ? e->first_us : n.at_us;
    size_t i = s->heap_count++;
    for (; i > 0 && before(&n, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = n;
}

static struct sim_event pop(struct sim *s)
{
    struct sim_event top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->heap_count)
            break;
        if (child + 1 < s->heap_count && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static void hold(struct sim_node *n, const struct sim_event *e)
{
    if (n->held_count == n->held_cap) {
        size_t cap = n->held_cap;
        n->held = grown(n->held, &cap, sizeof *n->held);
        n->held_cap = (uint32_t)cap;
    }
    n->held[n->held_count++] = *e;
}

void sim_wake(struct sim *s, uint32_t node)
{
    struct sim_node *n = &s->node[node];
    uint32_t count = n->held_count;
    n->hung = false;
    n->held_count = 0;
    for (uint32_t i = 0; i < count; i++)
        sim_post(s, s->now_us, &n->held[i]);
}

bool sim_next(struct sim *s)
{
    if (s->heap_count == 0)
        return false;
    struct sim_event e = pop(s);
    KVS_ASSERT(e.at_us >= s->now_us);
    s->now_us = e.at_us;
    if (e.node != SIM_NOBODY) {
        struct sim_node *n = &s->node[e.node];
        if (!n->alive || n->life != e.life) {
            free(e.ptr);
            return true;
        }
        if (n->hung) {
            hold(n, &e);
            return true;
        }
    }
    sim_count(s, SIM_N_events, 1);
    s->about = (struct sim_about){.node = SIM_NOBODY};
    e.run(s, &e);
    sim_check_event(s, &e);
    free(e.ptr);
    return true;
}

void sim_drop_events(struct sim *s)
{
    for (size_t i = 0; i < s->heap_count; i++)
        free(s->heap[i].ptr);
    for (uint32_t i = 0; i < s->node_count; i++) {
        for (uint32_t k = 0; k < s->node[i].held_count; k++)
            free(s->node[i].held[k].ptr);
        free(s->node[i].held);
    }
    free(s->heap);
}

/* --- random numbers and counters --- */

uint64_t sim_draw(struct sim *s, uint64_t low, uint64_t high)
{
    return high > low ? low + kvs_rng_below(&s->rng, high - low + 1) : low;
}

bool sim_chance(struct sim *s, uint32_t permille)
{
    return permille != 0 && kvs_rng_below(&s->rng, 1000) < permille;
}

uint64_t sim_in(struct sim *s, uint64_t low_us, uint64_t high_us)
{
    return s->now_us + sim_draw(s, low_us, high_us);
}

uint64_t sim_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 32;
}

void sim_count(struct sim *s, sim_counter c, uint64_t n)
{
    s->report.n[c] += n;
}

void sim_fault(struct sim *s, sim_counter kind)
{
    s->report.n[kind]++;
    s->report.n[SIM_N_faults]++;
}

void sim_fail(struct sim *s, const char *fmt, ...)
{
    if (s->failed)
        return; /* the first cause stands */
    va_list args;
    va_start(args, fmt);
    kvs_vformat(s->why, sizeof s->why, fmt, args);
    va_end(args);
    s->failed = true;
}
