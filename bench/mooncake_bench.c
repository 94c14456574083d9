/* mooncake_bench.c - an hour of real chat traffic replayed in virtual time through the real router core (admission, index, policy) and real
 * worker schedulers with their pools, prefix trees and cache events; only the machine is made up.
 *
 *   mooncake_bench [--trace FILE] [--requests N] [--workers N] [--blocks N,N,...] [--token-rate N] [--scale N] [--check]
 *
 * The trace (Mooncake, FAST'25) has one hash per 512-token block of each prompt; equal hashes are equal prefixes. Lengths are divided by
 * --scale (64: a block of 512 tokens is one of 8), and a worker's tokens a second likewise, so that times stay what they are. Block hashes
 * become token ids, and everything else follows from these. Answers are one token: the fleet stands for the readers of prompts.
 * Four ways to place: round robin; the router without cache events (load alone); the router; and the router that may fetch. For each size of
 * cache: the share of prompt tokens that were not computed, and the time to first token. The ceiling is what one unbounded cache would
 * have, with the rules of ours (whole blocks; the last token is always computed).
 * --check: exit code 1 when placement by the router does not beat round robin by a tenth in every row.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/router.h"
#include "worker/core/events.h"
#include "worker/core/fit.h"
#include "worker/core/sched.h"

#include "base/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 64u
#define SIZES_MAX 8u
#define TRACE_BLOCK 512u
#define HASHES_MAX 4096u
#define LOAD_US 250000u
#define NEVER UINT64_MAX
#define KV_TOKEN_BYTES 131072.0 /* of a model with 32 layers of 8 KV heads, F16 */
#define LINK_LATENCY_S 0.002
#define LINK_BYTE_S 1e-10 /* 10 GB/s */
#define STEP_FIXED_S 0.005
#define PAIR_SHARE 0.25 /* of a 12,000-token prompt's time goes into attention */

enum way { ROUND_ROBIN, LOAD_ALONE, PLACED, PLACED_FETCH, WAYS };
static const char *const way_names[WAYS] = {"round robin", "load alone", "placed", "placed, fetch"};

struct options {
    const char *trace;
    uint32_t requests, workers, sizes[SIZES_MAX], size_count, token_rate, scale;
    bool check;
};
struct request {
    uint64_t at_us;
    uint32_t tokens, first, count; /* of hashes */
};
struct trace {
    struct request *request;
    uint32_t count;
    uint32_t *hash;
    size_t hashes, cap;
    uint64_t total_tokens, ceiling_tokens;
};

struct node {
    struct wrk_sched *s;
    struct wrk_speed speed;
    struct wrk_reader reader;
    const struct wrk_step *step;
    uint64_t step_end_us, step_begin_us;
};
struct fetch { /* under way */
    uint64_t done_us;
    uint32_t node, from;
    wrk_seq_id seq, pin;
    uint32_t tokens;
};
struct run {
    const struct options *o;
    const struct trace *t;
    enum way way;
    struct kvc_layout layout;
    struct node node[WORKERS_MAX];
    struct rtr *r;
    struct fetch *fetch;
    uint32_t fetch_count, turn, done;
    uint64_t now_us, load_us;
    uint64_t hit_tokens, fetched_tokens;
    double *ttft;
    int32_t *tokens; /* of one prompt */
    struct wrk_cache_item *item;
    double token_s, pair_s;
};

static void die(const char *what)
{
    fprintf(stderr, "mooncake_bench: %s\n", what);
    exit(2);
}

static void *zeros(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);
    if (!p)
        die("out of memory");
    return p;
}

/* ---- the trace ---- */

static uint64_t number_after(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static void keep_hash(struct trace *t, uint32_t h)
{
    if (t->hashes == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 1 << 16;
        t->hash = realloc(t->hash, t->cap * sizeof *t->hash);
        if (!t->hash)
            die("out of memory");
    }
    t->hash[t->hashes++] = h;
}

static void read_line(struct trace *t, const char *line, uint32_t scale)
{
    struct request *q = &t->request[t->count++];
    const char *p = strstr(line, "\"hash_ids\": [");
    q->at_us = number_after(line, "\"timestamp\": ") * 1000;
    uint64_t tokens = number_after(line, "\"input_length\": ");
    q->tokens = (uint32_t)((tokens + scale - 1) / scale);
    q->first = (uint32_t)t->hashes;
    if (!p || !q->tokens)
        die("a line of the trace is not understood");
    for (p += strlen("\"hash_ids\": ["); *p && *p != ']' && q->count < HASHES_MAX; q->count++) {
        char *end;
        keep_hash(t, (uint32_t)strtoul(p, &end, 10));
        p = end + strspn(end, ", ");
    }
    uint32_t most = q->count * (TRACE_BLOCK / scale);
    q->tokens = q->tokens < most ? q->tokens : most;
}

static void read_trace(const struct options *o, struct trace *t)
{
    FILE *f = fopen(o->trace, "r");
    size_t cap = 1 << 20;
    if (!f) {
        printf("mooncake_bench: %s is absent: skipped\n", o->trace);
        exit(77);
    }
    char *line = zeros(cap, 1);
    t->request = zeros(o->requests, sizeof *t->request);
    while (t->count < o->requests && fgets(line, (int)cap, f))
        read_line(t, line, o->scale);
    fclose(f);
    free(line);
}

/* One cache without bounds that knows a prompt the moment it comes. */
static void find_ceiling(struct trace *t, uint32_t block)
{
    struct kvs_map *known;
    if (kvs_map_create(t->hashes + 1, &known) != KVS_OK)
        die("out of memory");
    for (uint32_t i = 0; i < t->count; i++) {
        const struct request *q = &t->request[i];
        uint32_t whole = q->tokens / block, usable = (q->tokens - 1) / block, hits = 0;
        uint64_t ignored;
        for (uint32_t k = 0; k < usable && hits == k; k++)
            hits += kvs_map_get(known, t->hash[q->first + k] + 1u, &ignored);
        for (uint32_t k = 0; k < whole; k++)
            if (kvs_map_put(known, t->hash[q->first + k] + 1u, 1) != KVS_OK)
                die("out of memory");
        t->total_tokens += q->tokens;
        t->ceiling_tokens += (uint64_t)hits * block;
    }
    kvs_map_destroy(known);
}

/* ---- the machine ---- */

static double step_seconds(const struct run *x, const struct wrk_step *s)
{
    double t = STEP_FIXED_S;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        double n = s->entries[i].count, p = s->entries[i].pos;
        t += n * x->token_s + (n * p + n * (n + 1) / 2) * x->pair_s;
    }
    return t;
}

static double fetch_seconds(const struct run *x, uint32_t tokens)
{
    return LINK_LATENCY_S + (double)tokens * x->o->scale * KV_TOKEN_BYTES * LINK_BYTE_S;
}

static void take_housekeeping(struct node *n)
{
    struct wrk_page page[64];
    struct wrk_copy copy;
    while (wrk_sched_take_zeros(n->s, page, 64) != 0) {}
    while (wrk_sched_take_copies(n->s, &copy, 1) != 0) {}
}

static void start_step(struct run *x, struct node *n)
{
    if (n->step)
        return;
    wrk_sched_tell_time(n->s, x->now_us);
    wrk_sched_admit(n->s);
    n->step = wrk_sched_next_step(n->s);
    take_housekeeping(n);
    if (!n->step)
        return;
    n->step_begin_us = x->now_us;
    n->step_end_us = x->now_us + 1 + (uint64_t)(step_seconds(x, n->step) * 1e6);
}

/* ---- requests ---- */

static void feed(struct run *x, const struct rtr_event *ev);

static void make_tokens(const struct run *x, const struct request *q)
{
    uint32_t block = TRACE_BLOCK / x->o->scale;
    for (uint32_t i = 0; i < q->tokens; i++)
        x->tokens[i] = (int32_t)(x->t->hash[q->first + i / block] * block + i % block);
}

static wrk_seq_id open_on(struct run *x, uint32_t node, uint32_t index, const int32_t *tokens, bool hold)
{
    struct kvs_error err = {0};
    const struct request *q = &x->t->request[index];
    struct wrk_seq_config c = {.owner = WRK_OWNER_DECODE, .user = index, .tokens = tokens, .token_count = q->tokens, .tokens_max = q->tokens + 1,
                               .hold = hold, .logits = WRK_LOGITS_SAMPLE};
    wrk_seq_id id;
    wrk_sched_tell_time(x->node[node].s, x->now_us);
    if (wrk_seq_open(x->node[node].s, &c, &id, &err) != KVS_OK)
        die(err.text);
    return id;
}

/* What the decode worker does with a FETCH: the source pins what it has, the pages travel, the rest is computed. */
static void begin_fetch(struct run *x, uint32_t node, uint32_t index, const struct msg_generate *g)
{
    struct kvs_error err = {0};
    uint32_t from = (uint32_t)strtoul(g->fetch_worker + strlen("worker-"), NULL, 10);
    struct fetch *f = &x->fetch[x->fetch_count];
    struct wrk_seq_config c = {.owner = WRK_OWNER_PREFILL, .user = index, .tokens = g->tokens, .token_count = g->token_count,
                               .tokens_max = g->token_count + 1};
    *f = (struct fetch){.node = node, .from = from, .seq = open_on(x, node, index, g->tokens, true)};
    wrk_sched_admit(x->node[node].s);
    struct wrk_seq_view v = wrk_seq_look(x->node[node].s, f->seq);
    bool pinned = v.state == WRK_SEQ_HELD && wrk_seq_pin(x->node[from].s, &c, &f->pin, &err) == KVS_OK;
    uint32_t there = pinned ? wrk_seq_look(x->node[from].s, f->pin).shared * x->layout.block_tokens : 0;
    f->tokens = there < g->fetch_tokens ? there : g->fetch_tokens;
    take_housekeeping(&x->node[from]);
    f->done_us = x->now_us;
    if (f->tokens > v.computed)
        f->done_us += (uint64_t)(fetch_seconds(x, f->tokens - v.computed) * 1e6);
    x->fetch_count++;
}

static void end_fetch(struct run *x, uint32_t i)
{
    struct fetch f = x->fetch[i];
    struct node *n = &x->node[f.node];
    struct wrk_seq_view v = wrk_seq_look(n->s, f.seq);
    x->fetch[i] = x->fetch[--x->fetch_count];
    if (f.pin)
        wrk_seq_close(x->node[f.from].s, f.pin);
    if (v.state == WRK_SEQ_HELD && f.tokens > v.computed) {
        x->fetched_tokens += f.tokens - v.computed;
        wrk_seq_ready(n->s, f.seq, f.tokens, false);
    } else if (v.state == WRK_SEQ_HELD) {
        wrk_seq_ready(n->s, f.seq, v.computed, false);
    } else { /* waits for pages: it is ready as soon as it has them */
        x->fetch[x->fetch_count] = f;
        x->fetch[x->fetch_count].pin = WRK_SEQ_NONE;
        x->fetch[x->fetch_count].tokens = 0;
        x->fetch[x->fetch_count++].done_us = x->now_us + 10000;
    }
    start_step(x, n);
}

static void act(struct run *x, const struct rtr_action *a)
{
    if (a->type == RTR_ACT_REJECT || (a->type == RTR_ACT_FINISH && a->status != KVS_OK))
        die(a->text);
    if (a->type != RTR_ACT_GENERATE)
        return;
    uint32_t node = (uint32_t)a->worker - 1, index = (uint32_t)a->id - 1;
    if (x->way == PLACED_FETCH && a->generate.fetch_worker[0])
        begin_fetch(x, node, index, &a->generate);
    else
        (void)open_on(x, node, index, a->generate.tokens, false);
    start_step(x, &x->node[node]);
}

static void feed(struct run *x, const struct rtr_event *ev)
{
    struct rtr_action a[8];
    size_t n;
    rtr_step(x->r, ev, x->now_us);
    while ((n = rtr_actions(x->r, a, 8)) > 0)
        for (size_t i = 0; i < n; i++)
            act(x, &a[i]);
}

static void arrive(struct run *x, uint32_t index)
{
    const struct request *q = &x->t->request[index];
    make_tokens(x, q);
    if (x->way == ROUND_ROBIN) {
        uint32_t node = x->turn++ % x->o->workers;
        (void)open_on(x, node, index, x->tokens, false);
        start_step(x, &x->node[node]);
        return;
    }
    struct rtr_request ask = {.id = index + 1u, .model = 1, .choices = 1, .tokens = x->tokens, .token_count = q->tokens, .max_tokens = 1};
    feed(x, &(struct rtr_event){.type = RTR_EV_REQUEST, .request = &ask});
}

/* ---- workers ---- */

static void tell_cache(struct run *x, uint32_t node)
{
    struct node *n = &x->node[node];
    if (x->way != PLACED && x->way != PLACED_FETCH)
        return;
    while (wrk_events_read(wrk_sched_events(n->s), wrk_sched_tree(n->s), &n->reader, MSG_CACHE_BLOCKS_MAX, x->item))
        feed(x, &(struct rtr_event){.type = RTR_EV_CACHE, .worker = node + 1u, .cache = &x->item->msg});
}

static void first_token(struct run *x, uint32_t node, const struct wrk_seq_result *r)
{
    struct wrk_seq_view v = wrk_seq_look(x->node[node].s, r->seq);
    const struct request *q = &x->t->request[r->user];
    x->hit_tokens += q->tokens - v.prefilled;
    x->ttft[r->user] = (double)(x->now_us - q->at_us) * 1e-6;
    x->done++;
    wrk_seq_close(x->node[node].s, r->seq);
    if (x->way == ROUND_ROBIN)
        return;
    struct msg_token t = {.request = r->user + 1u, .attempt = 1, .id = 1, .finish = MSG_FINISH_LENGTH};
    feed(x, &(struct rtr_event){.type = RTR_EV_TOKEN, .worker = node + 1u, .token = &t});
}

static void end_step(struct run *x, uint32_t node)
{
    static struct wrk_result results[4096];
    struct node *n = &x->node[node];
    const struct wrk_step *s = n->step;
    wrk_speed_add(&n->speed, s, (double)(n->step_end_us - n->step_begin_us) * 1e-6);
    n->step = NULL;
    if (!wrk_sched_step_done(n->s, s->id, KVS_OK, results))
        die("a step that was not in flight");
    tell_cache(x, node);
    struct wrk_seq_result done[256];
    uint32_t count;
    const struct wrk_seq_result *r = wrk_sched_results(n->s, WRK_OWNER_DECODE, &count, NULL);
    KVS_ASSERT(count <= 256);
    memcpy(done, r, count * sizeof *r); /* the router may start a step here meanwhile */
    for (uint32_t i = 0; i < count; i++)
        if (done[i].last)
            first_token(x, node, &done[i]);
    start_step(x, n);
    tell_cache(x, node);
}

static void report(struct run *x, uint32_t node)
{
    static struct msg_load l;
    struct wrk_sched_stats st = wrk_sched_stats(x->node[node].s);
    l = (struct msg_load){.running = st.active, .waiting = st.waiting, .outstanding_tokens = st.outstanding_tokens, .prefill_left = st.prefill_left,
                          .decoding = st.decoding, .context_tokens = st.context_tokens, .chunk_tokens = wrk_sched_chunk_tokens(x->node[node].s)};
    wrk_speed_tell(&x->node[node].speed, &l.speed);
    for (uint32_t i = 0; x->way == PLACED_FETCH && i < x->o->workers; i++) {
        if (i == node)
            continue;
        struct msg_peer_link *p = &l.peers[l.peer_count++];
        kvs_format(p->id, sizeof p->id, "worker-%u", i);
        *p = (struct msg_peer_link){.latency_s = LINK_LATENCY_S, .byte_s = LINK_BYTE_S, .samples = 1};
        kvs_format(p->id, sizeof p->id, "worker-%u", i);
    }
    feed(x, &(struct rtr_event){.type = RTR_EV_LOAD, .worker = node + 1u, .load = &l});
}

/* ---- one run ---- */

static void make_router(struct run *x)
{
    struct rtr_config c;
    static struct msg_card card;
    rtr_config_default(&c);
    c.requests_max = c.queue_max = 1u << 14;
    c.workers_max = x->o->workers;
    c.worker_sequences_max = 200;
    c.tokens_max = 1ull << 40;
    c.deadline_us = 86400ull * 1000000;
    c.index_bytes = 256u << 20;
    if (rtr_create(&c, &x->r, NULL) != KVS_OK)
        die("the router could not be made");
    for (uint32_t i = 0; i < x->o->workers; i++) {
        card = (struct msg_card){.role = MSG_ROLE_DECODE, .block_tokens = x->layout.block_tokens, .group_count = 1};
        card.group[0].page_bytes = (uint64_t)(KV_TOKEN_BYTES * TRACE_BLOCK);
        kvs_format(card.id, sizeof card.id, "worker-%u", i);
        feed(x, &(struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = i + 1u, .model = 1, .card = &card});
    }
}

static void make_nodes(struct run *x, uint32_t blocks, uint32_t longest)
{
    for (uint32_t i = 0; i < x->o->workers; i++) {
        struct wrk_sched_config c = {.layout = &x->layout, .pages = {blocks}, .seqs_max = 4096, .batch_seqs = 64, .context = longest,
                                     .chunk_tokens = 2048 / x->o->scale, .reserve_tokens = 1, .tree_nodes = blocks};
        if (wrk_sched_create(&c, &x->node[i].s, NULL) != KVS_OK)
            die("a worker could not be made");
    }
}

static uint64_t next_time(const struct run *x, uint32_t next, uint32_t *node_out, uint32_t *fetch_out)
{
    uint64_t at = next < x->t->count ? x->t->request[next].at_us : NEVER;
    *node_out = *fetch_out = UINT32_MAX;
    for (uint32_t i = 0; i < x->o->workers; i++)
        if (x->node[i].step && x->node[i].step_end_us < at) {
            at = x->node[i].step_end_us;
            *node_out = i;
        }
    for (uint32_t i = 0; i < x->fetch_count; i++)
        if (x->fetch[i].done_us < at) {
            at = x->fetch[i].done_us;
            *fetch_out = i;
        }
    return at;
}

static void replay(struct run *x)
{
    uint32_t next = 0, node, fetch;
    while (x->done < x->t->count) {
        uint64_t at = next_time(x, next, &node, &fetch);
        if (x->way != ROUND_ROBIN && x->load_us <= at) {
            x->now_us = x->load_us;
            x->load_us += LOAD_US;
            for (uint32_t i = 0; i < x->o->workers; i++)
                report(x, i);
            continue;
        }
        if (at == NEVER)
            die("nothing is left to happen, and not all requests are done");
        x->now_us = at > x->now_us ? at : x->now_us;
        if (fetch != UINT32_MAX)
            end_fetch(x, fetch);
        else if (node != UINT32_MAX)
            end_step(x, node);
        else
            arrive(x, next++);
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct outcome {
    double hits, fetched, mean, p50, p99;
};

static struct outcome run_once(const struct options *o, const struct trace *t, enum way way, uint32_t blocks)
{
    struct run *x = zeros(1, sizeof *x);
    struct kvc_layout_config lc = {.layers = 1, .kv_heads = 1, .key_dim = 4, .value_dim = 4, .kv_type = KVC_F16, .block_tokens = TRACE_BLOCK / o->scale};
    uint32_t longest = 0;
    for (uint32_t i = 0; i < t->count; i++)
        longest = t->request[i].tokens > longest ? t->request[i].tokens : longest;
    *x = (struct run){.o = o, .t = t, .way = way, .load_us = LOAD_US};
    /* At 12,000 tokens: (1 - share) of the time goes by tokens, share by pairs. */
    double n = 12000.0 / o->scale, whole = 12000.0 / o->token_rate;
    x->token_s = whole * (1 - PAIR_SHARE) / n;
    x->pair_s = whole * PAIR_SHARE / (n * (n + 1) / 2);
    if (kvc_layout_build(&lc, &x->layout, NULL) != KVS_OK)
        die("--scale leaves no block that the layout allows");
    x->tokens = zeros(longest, sizeof *x->tokens);
    x->ttft = zeros(t->count, sizeof *x->ttft);
    x->fetch = zeros(t->count + 1, sizeof *x->fetch);
    x->item = zeros(1, sizeof *x->item);
    make_nodes(x, blocks, longest);
    make_router(x);
    replay(x);
    struct outcome out = {.hits = (double)x->hit_tokens / (double)t->total_tokens, .fetched = (double)x->fetched_tokens / (double)t->total_tokens};
    qsort(x->ttft, t->count, sizeof *x->ttft, by_size);
    for (uint32_t i = 0; i < t->count; i++)
        out.mean += x->ttft[i] / t->count;
    out.p50 = x->ttft[t->count / 2];
    out.p99 = x->ttft[(size_t)t->count * 99 / 100];
    for (uint32_t i = 0; i < o->workers; i++)
        wrk_sched_destroy(x->node[i].s);
    rtr_destroy(x->r);
    free(x->tokens);
    free(x->ttft);
    free(x->fetch);
    free(x->item);
    free(x);
    return out;
}

/* ---- the table ---- */

static uint32_t number(const char *text)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    if (end == text || *end || v == 0 || v > 10000000)
        die("an option wants a number from 1 to 10,000,000");
    return (uint32_t)v;
}

static void read_sizes(struct options *o, const char *text)
{
    for (o->size_count = 0; *text && o->size_count < SIZES_MAX;) {
        char *end;
        unsigned long v = strtoul(text, &end, 10);
        if (end == text || v < 512 || v > 1000000)
            die("--blocks: sizes from 512 to 1,000,000 blocks, with commas between");
        o->sizes[o->size_count++] = (uint32_t)v;
        text = *end ? end + 1 : end;
    }
}

static void read_options(int argc, char **argv, struct options *o)
{
    *o = (struct options){.trace = KVS_SHARED_DIR "/data/traces/mooncake_conversation.jsonl", .requests = 100000, .workers = 8, .token_rate = 10000, .scale = 64};
    read_sizes(o, "2000,8000,32000,200000");
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--check")) {
            o->check = true;
            continue;
        }
        i++;
        if (!strcmp(argv[i - 1], "--trace"))
            o->trace = value;
        else if (!strcmp(argv[i - 1], "--requests"))
            o->requests = number(value);
        else if (!strcmp(argv[i - 1], "--workers"))
            o->workers = number(value);
        else if (!strcmp(argv[i - 1], "--token-rate"))
            o->token_rate = number(value);
        else if (!strcmp(argv[i - 1], "--scale"))
            o->scale = number(value);
        else if (!strcmp(argv[i - 1], "--blocks"))
            read_sizes(o, value);
        else
            die("options: --trace FILE --requests N --workers N --blocks N,... --token-rate N --scale N --check");
    }
    if (o->workers > WORKERS_MAX || o->scale > TRACE_BLOCK || TRACE_BLOCK % o->scale != 0)
        die("at most 64 workers; --scale divides 512");
}

int main(int argc, char **argv)
{
    struct options o;
    struct trace t = {0};
    bool good = true;
    read_options(argc, argv, &o);
    read_trace(&o, &t);
    find_ceiling(&t, TRACE_BLOCK / o.scale);
    printf("%u requests in %.0f s, %u workers of %u tokens/s; lengths 1:%u. Ceiling: %.1f %% of prompt tokens.\n\n", t.count,
           (double)t.request[t.count - 1].at_us * 1e-6, o.workers, o.token_rate, o.scale, 100 * (double)t.ceiling_tokens / (double)t.total_tokens);
    puts("| cache a worker | placement | not computed | of it fetched | TTFT mean | median | 99 % |\n|---|---|---|---|---|---|---|");
    for (uint32_t k = 0; k < o.size_count; k++) {
        double hits[WAYS];
        for (enum way w = ROUND_ROBIN; w < WAYS; w++) {
            struct outcome r = run_once(&o, &t, w, o.sizes[k]);
            hits[w] = r.hits;
            printf("| %u blocks | %s | %.1f %% | %.1f %% | %.2f s | %.2f s | %.2f s |\n", o.sizes[k], way_names[w], 100 * r.hits, 100 * r.fetched, r.mean,
                   r.p50, r.p99);
            fflush(stdout);
        }
        good = good && hits[PLACED] >= 1.1 * hits[ROUND_ROBIN] && hits[PLACED_FETCH] >= 1.1 * hits[ROUND_ROBIN];
    }
    free(t.request);
    free(t.hash);
    if (o.check && !good)
        puts("\nplacement by the router finds less than a tenth more than round robin");
    return o.check && !good ? 1 : 0;
}
