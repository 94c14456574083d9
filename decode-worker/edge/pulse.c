/* pulse.c - see pulse.h. A call that ends without an entry leaves its row behind until the map is full; then the map is emptied as a
 * whole: a few intervals go unmeasured, memory stays bounded.
 * SPDX-License-Identifier: Apache-2.0 */
#include "decode-worker/edge/pulse.h"

kvs_status dcw_pulse_init(struct dcw_pulse *p, struct kvs_metrics *m, uint32_t sequences_max)
{
    p->ttft = kvs_histogram(m, "kvasir_ttft_seconds", "", "From a GENERATE call's arrival to its first token sent", kvs_latency_bounds,
                            kvs_latency_bound_count);
    p->itl = kvs_histogram(m, "kvasir_itl_seconds", "", "Between two tokens of a sequence sent", kvs_latency_bounds, kvs_latency_bound_count);
    return kvs_map_create((size_t)sequences_max * 4, &p->last);
}

void dcw_pulse_fini(struct dcw_pulse *p)
{
    kvs_map_destroy(p->last);
    p->last = NULL;
}

static uint64_t key_of(uint64_t request, uint32_t choice)
{
    return request * 16 + choice % 16;
}

static void put(struct dcw_pulse *p, uint64_t key, uint64_t now_us)
{
    if (kvs_map_put(p->last, key, now_us) == KVS_OK)
        return;
    struct kvs_map *fresh;
    if (kvs_map_create(kvs_map_count(p->last), &fresh) != KVS_OK)
        return; /* this one is not measured; the next may be */
    kvs_map_destroy(p->last);
    p->last = fresh;
    (void)!kvs_map_put(p->last, key, now_us);
}

void dcw_pulse_call(struct dcw_pulse *p, const struct msg_generate *g, uint64_t now_us)
{
    if (p->last != NULL)
        put(p, key_of(g->request, g->choice), now_us);
}

void dcw_pulse_token(struct dcw_pulse *p, const struct msg_token *t, uint64_t now_us)
{
    uint64_t key = key_of(t->request, t->choice), last;
    if (p->last == NULL)
        return;
    if (t->id >= 0 && kvs_map_get(p->last, key, &last)) {
        kvs_histogram_observe(t->has_placed ? p->ttft : p->itl, (double)(now_us - last) * 1e-6);
        put(p, key, now_us);
    }
    if (t->finish != MSG_RUNNING)
        (void)kvs_map_remove(p->last, key);
}
