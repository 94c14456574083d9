/* sink.c - receiving end of one transfer: what is wanted, what is on its way, what has landed.
 * Owner: whoever drives it (the transport thread, the simulator). No I/O: it is told what happened and says what
 * follows.
 *
 *   slot:  WANTED --begin--> RECEIVING --landed(ok)--> LANDED
 *                                      --landed(bad)-> BAD
 *   The counts per slot state are kept beside the slots; settle() is the only place that leaves OPEN after END.
 *
 * Messages arrive in any order and END may overtake them: the source sends it when its sends have completed, which says
 * nothing about delivery. Once END is here, a slot that is still WANTED was declined or never sent: the transfer has
 * failed. Lookup by (block, group, shard) goes through an open-addressing table of twice the size: a hostile index
 * costs no scan.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/core/sink.h"

#include <stdlib.h>
#include <string.h>

#define WANTS_MAX 65536u
#define EMPTY UINT32_MAX

typedef enum slot_state { SLOT_WANTED, SLOT_RECEIVING, SLOT_LANDED, SLOT_BAD, SLOT_STATES } slot_state;

struct slot {
    struct kvt_want want;
    uint64_t checksum;
    slot_state state;
};

/* Owner: the transport thread while granted. */
struct kvt_sink {
    uint64_t sink_epoch, xfer, nonce;
    struct slot *slot; /* [slot_count], owned */
    uint32_t *table;   /* [table_mask + 1] slot indices, owned */
    uint32_t slot_count, table_mask;
    uint32_t in_state[SLOT_STATES];
    uint64_t landed_bytes;
    kvt_sink_state state;
    bool ended;
};

const char *kvt_verdict_name(kvt_verdict v)
{
    static const char *const name[KVT_VERDICTS] = {"accept", "header", "version", "epoch",  "xfer",     "nonce",
                                                   "closed", "index",  "double",  "length", "checksum", "transport"};
    return v < KVT_VERDICTS ? name[v] : "unknown";
}

/* Any mixing will do: wants are few, and the table is half empty. */
static uint32_t hash_index(uint32_t block, uint16_t group, uint16_t shard)
{
    uint64_t x = ((uint64_t)block << 32 | (uint64_t)group << 16 | shard) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(x >> 32);
}

/* Place of the slot in the table, or of the empty entry where it would go. */
static uint32_t *find(const struct kvt_sink *s, uint32_t block, uint16_t group, uint16_t shard)
{
    for (uint32_t i = hash_index(block, group, shard);; i++) {
        uint32_t *e = &s->table[i & s->table_mask];
        const struct kvt_want *w = *e == EMPTY ? NULL : &s->slot[*e].want;
        if (w == NULL || (w->block == block && w->group == group && w->shard == shard))
            return e;
    }
}

static bool add_want(struct kvt_sink *s, uint32_t i, const struct kvt_want *w)
{
    uint32_t *e = find(s, w->block, w->group, w->shard);
    if (*e != EMPTY || w->bytes == 0)
        return false;
    *e = i;
    s->slot[i].want = *w;
    return true;
}

kvs_status kvt_sink_create(const struct kvt_sink_config *c, struct kvt_sink **out)
{
    KVS_ASSERT(c != NULL && out != NULL);
    if (c->want_count == 0 || c->want_count > WANTS_MAX || c->wants == NULL)
        return KVS_REQ_INVALID;
    kvs_status status = KVS_SELF_NOMEM;
    struct kvt_sink *s = calloc(1, sizeof *s);
    if (s == NULL)
        return status;
    uint32_t table = 4;
    while (table < 2 * c->want_count)
        table *= 2;
    s->slot = calloc(c->want_count, sizeof *s->slot);
    s->table = malloc(table * sizeof *s->table);
    if (s->slot == NULL || s->table == NULL)
        goto fail;
    memset(s->table, 0xff, table * sizeof *s->table); /* EMPTY */
    s->table_mask = table - 1;
    s->slot_count = s->in_state[SLOT_WANTED] = c->want_count;
    s->sink_epoch = c->sink_epoch;
    s->xfer = c->xfer;
    s->nonce = c->nonce;
    status = KVS_REQ_INVALID;
    for (uint32_t i = 0; i < c->want_count; i++)
        if (!add_want(s, i, &c->wants[i]))
            goto fail;
    *out = s;
    return KVS_OK;
fail:
    kvt_sink_destroy(s);
    return status;
}

void kvt_sink_destroy(struct kvt_sink *s)
{
    if (s == NULL)
        return;
    KVS_ASSERT(s->in_state[SLOT_RECEIVING] == 0); /* somebody still writes into the pages */
    free(s->slot);
    free(s->table);
    free(s);
}

kvt_verdict kvt_sink_check(const struct kvt_sink *s, const struct kvt_header *h, uint64_t length, uint32_t *slot_out)
{
    KVS_ASSERT(s != NULL && h != NULL && slot_out != NULL);
    if (!kvt_header_known(h))
        return KVT_DECLINE_VERSION;
    if (h->sink_epoch != s->sink_epoch)
        return KVT_DECLINE_EPOCH;
    if (h->xfer != s->xfer)
        return KVT_DECLINE_XFER;
    if (h->nonce != s->nonce)
        return KVT_DECLINE_NONCE;
    if (s->state != KVT_SINK_OPEN)
        return KVT_DECLINE_CLOSED;
    bool logits = h->block == KVT_LOGITS_BLOCK && h->group == KVT_LOGITS_GROUP;
    uint32_t i = *find(s, h->block, h->group, h->shard);
    if (i == EMPTY || logits != (h->kind == KVT_LOGITS))
        return KVT_DECLINE_INDEX;
    if (s->slot[i].state != SLOT_WANTED)
        return KVT_DECLINE_DOUBLE;
    if (length != s->slot[i].want.bytes || h->bytes != length)
        return KVT_DECLINE_LENGTH;
    *slot_out = i;
    return KVT_ACCEPT;
}

static struct slot *slot_at(const struct kvt_sink *s, uint32_t i)
{
    KVS_ASSERT(s != NULL && i < s->slot_count);
    return &s->slot[i];
}

static void move_slot(struct kvt_sink *s, struct slot *e, slot_state to)
{
    KVS_ASSERT(s->in_state[e->state] > 0);
    s->in_state[e->state]--;
    s->in_state[to]++;
    e->state = to;
}

const struct kvt_want *kvt_sink_want(const struct kvt_sink *s, uint32_t slot)
{
    return &slot_at(s, slot)->want;
}

uint64_t kvt_sink_checksum(const struct kvt_sink *s, uint32_t slot)
{
    return slot_at(s, slot)->checksum;
}

/* After END: whatever can no longer arrive decides. */
static void settle(struct kvt_sink *s)
{
    if (s->state != KVT_SINK_OPEN || !s->ended)
        return;
    if (s->in_state[SLOT_WANTED] > 0 || s->in_state[SLOT_BAD] > 0)
        s->state = KVT_SINK_FAILED;
    else if (s->in_state[SLOT_LANDED] == s->slot_count)
        s->state = KVT_SINK_COMPLETE;
}

void kvt_sink_begin(struct kvt_sink *s, uint32_t slot, uint64_t checksum)
{
    struct slot *e = slot_at(s, slot);
    KVS_ASSERT(s->state == KVT_SINK_OPEN && e->state == SLOT_WANTED);
    e->checksum = checksum;
    move_slot(s, e, SLOT_RECEIVING);
}

void kvt_sink_landed(struct kvt_sink *s, uint32_t slot, bool ok)
{
    struct slot *e = slot_at(s, slot);
    KVS_ASSERT(e->state == SLOT_RECEIVING);
    move_slot(s, e, ok ? SLOT_LANDED : SLOT_BAD);
    if (ok && e->want.block != KVT_LOGITS_BLOCK)
        s->landed_bytes += e->want.bytes;
    settle(s);
}

void kvt_sink_end(struct kvt_sink *s, kvs_status status, uint32_t pages_sent)
{
    KVS_ASSERT(s != NULL);
    (void)pages_sent; /* what counts is what landed here, not what was sent there */
    s->ended = true;
    if (s->state == KVT_SINK_OPEN && status != KVS_OK)
        s->state = KVT_SINK_FAILED;
    settle(s);
}

void kvt_sink_cancel(struct kvt_sink *s)
{
    KVS_ASSERT(s != NULL);
    if (s->state == KVT_SINK_OPEN)
        s->state = KVT_SINK_CANCELLED;
}

kvt_sink_state kvt_sink_state_of(const struct kvt_sink *s)
{
    KVS_ASSERT(s != NULL);
    return s->state;
}

uint32_t kvt_sink_receiving(const struct kvt_sink *s)
{
    KVS_ASSERT(s != NULL);
    return s->in_state[SLOT_RECEIVING];
}

uint32_t kvt_sink_landed_count(const struct kvt_sink *s)
{
    KVS_ASSERT(s != NULL);
    return s->in_state[SLOT_LANDED];
}

uint64_t kvt_sink_landed_bytes(const struct kvt_sink *s)
{
    KVS_ASSERT(s != NULL);
    return s->landed_bytes;
}

uint32_t kvt_sink_missing(const struct kvt_sink *s, uint32_t *slots_out, uint32_t cap)
{
    KVS_ASSERT(s != NULL && (slots_out != NULL || cap == 0));
    for (uint32_t i = 0, n = 0; i < s->slot_count && n < cap; i++)
        if (s->slot[i].state != SLOT_LANDED)
            slots_out[n++] = i;
    return s->slot_count - s->in_state[SLOT_LANDED];
}

void kvt_sink_landed_of(const struct kvt_sink *s, uint32_t *pages_out, uint32_t groups)
{
    KVS_ASSERT(s != NULL && pages_out != NULL);
    for (uint32_t g = 0; g < groups; g++)
        pages_out[g] = 0;
    for (uint32_t i = 0; i < s->slot_count; i++) {
        const struct kvt_want *w = &s->slot[i].want;
        if (s->slot[i].state == SLOT_LANDED && w->block != KVT_LOGITS_BLOCK && w->group < groups)
            pages_out[w->group]++;
    }
}

uint64_t kvt_sink_xfer(const struct kvt_sink *s)
{
    KVS_ASSERT(s != NULL);
    return s->xfer;
}
