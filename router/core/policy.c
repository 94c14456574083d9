/* policy.c - see policy.h. First what each worker would need as a reader of this prompt is worked out, once a worker; then the pairs are
 * walked, which adds the link between them. The walk is done twice: the least time to first token must be known before candidates that are as
 * good as the best can be told from the others. Nothing is stored but the best few.
 * A prefill worker that is suspect or drains is not used; a decode worker that is suspect only when there is no other.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/policy.h"

#include <stdlib.h>
#include <string.h>

#define BAND_SHARE 0.05
#define BAND_S 1e-3
#define NEVER_S 1e30
#define SOURCES_MAX 8u /* whom a prefix may be fetched from: of many, those that have most of it */

/* A worker as the reader of this prompt. */
struct reader {
    bool decodes, prefills;
    struct msg_speed speed; /* its own, or of its kind */
    uint32_t cached;        /* tokens */
    double queue_s, prefill_s;
    bool slow; /* its own streams would miss their target meanwhile */
};
struct rtr_policy {
    uint32_t workers_max;
    struct reader *reader;
    const struct rtr_link **link; /* of the decode worker at hand, by slot */
    uint32_t *prefills, prefill_count; /* slots of those that read for others */
    uint32_t source[SOURCES_MAX], source_count; /* slots of those with the longest prefixes, the longest first */
};

/* A candidate in the walk. */
struct pick {
    const struct rtr_worker *decode, *prefill, *fetch;
    uint32_t cached, fetch_tokens;
    bool suspect, unwanted, slow, measured;
    struct rtr_cost cost;
};

/* What workers and links of the model are like, and when that was last measured. */
struct usual {
    struct msg_speed speed;
    struct rtr_link_cost link;
    uint64_t prefill_us, step_us, link_us;
};

struct walk {
    const struct rtr_policy *p;
    const struct rtr_fleet *f;
    const struct rtr_ask *ask;
    bool remote, local; /* allowed */
    bool want_remote;
    struct usual usual;
    bool ranking;     /* second pass */
    struct pick best; /* first pass: by rank, then time alone */
    struct pick kept[RTR_OPTIONS_MAX];
    uint32_t kept_count;
};

kvs_status rtr_policy_create(uint32_t workers_max, struct rtr_policy **out)
{
    KVS_ASSERT(workers_max > 0);
    struct rtr_policy *p = calloc(1, sizeof(*p));
    if (!p)
        return KVS_SELF_NOMEM;
    p->workers_max = workers_max;
    p->reader = calloc(workers_max, sizeof(*p->reader));
    p->link = calloc(workers_max, sizeof(*p->link));
    p->prefills = calloc(workers_max, sizeof(*p->prefills));
    if (!p->reader || !p->link || !p->prefills) {
        rtr_policy_destroy(p);
        return KVS_SELF_NOMEM;
    }
    *out = p;
    return KVS_OK;
}

void rtr_policy_destroy(struct rtr_policy *p)
{
    if (!p)
        return;
    free(p->reader);
    free(p->prefills);
    free((void *)(uintptr_t)p->link);
    free(p);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The larger of this router's own account, which is exact but blind to other routers, and the last report, which is up to 250 ms old. */
static uint64_t outstanding(const struct rtr_worker *w)
{
    return larger(w->decode_tokens + w->prefill_tokens, w->reported_tokens);
}

/* ---- readers ---- */

static void add_prefill(struct msg_speed *to, const struct msg_speed *s, double by)
{
    to->prefill_fixed_s += by * s->prefill_fixed_s;
    to->prefill_token_s += by * s->prefill_token_s;
    to->prefill_pair_s += by * s->prefill_pair_s;
}

static void add_step(struct msg_speed *to, const struct msg_speed *s, double by)
{
    to->step_fixed_s += by * s->step_fixed_s;
    to->step_sequence_s += by * s->step_sequence_s;
    to->step_context_s += by * s->step_context_s;
}

/* Each figure as the model's workers and links have it: the mean of what was measured, by the square of its trust; the defaults where nothing
 * was. And when each kind was last measured. */
static void look_at_usual(const struct rtr_fleet *f, uint32_t model, struct usual *out)
{
    struct msg_speed sum = {0}, slow;
    struct rtr_link_cost link = {0};
    double prefill = 0, step = 0, links = 0;
    *out = (struct usual){0};
    for (uint32_t i = 0; i < f->workers_max; i++) {
        const struct rtr_worker *w = &f->workers[i];
        if (!w->key || w->model != model)
            continue;
        double by = rtr_cost_trust(&w->prefill, 0);
        add_prefill(&sum, &w->speed, by * by);
        prefill += by * by;
        by = rtr_cost_trust(&w->step, 0);
        add_step(&sum, &w->speed, by * by);
        step += by * by;
        link.latency_s += w->links_sum.cost.latency_s;
        link.byte_s += w->links_sum.cost.byte_s;
        links += w->links_sum.weight;
        out->prefill_us = larger(out->prefill_us, w->prefill.samples ? w->prefill.at_us : 0);
        out->step_us = larger(out->step_us, w->step.samples ? w->step.at_us : 0);
        out->link_us = larger(out->link_us, w->links_sum.newest_us);
    }
    rtr_cost_default_speed(&slow);
    add_prefill(&out->speed, prefill > 0 ? &sum : &slow, prefill > 0 ? 1 / prefill : 1);
    add_step(&out->speed, step > 0 ? &sum : &slow, step > 0 ? 1 / step : 1);
    (void)rtr_cost_take_link(&(struct msg_peer_link){.samples = 0}, &out->link);
    if (links > 0)
        out->link = (struct rtr_link_cost){link.latency_s / links, link.byte_s / links};
}

/* What was measured, as far as it is to be trusted; the rest is as usual. */
static struct rtr_link_cost link_of(const struct rtr_link *l, const struct usual *u)
{
    double by = rtr_cost_trust(&l->measured, u->link_us);
    return (struct rtr_link_cost){by * l->cost.latency_s + (1 - by) * u->link.latency_s, by * l->cost.byte_s + (1 - by) * u->link.byte_s};
}

static void speed_of(const struct rtr_worker *w, const struct usual *u, struct msg_speed *out)
{
    double prefill = rtr_cost_trust(&w->prefill, u->prefill_us), step = rtr_cost_trust(&w->step, u->step_us);
    *out = (struct msg_speed){.prefill_samples = w->speed.prefill_samples, .step_samples = w->speed.step_samples};
    add_prefill(out, &w->speed, prefill);
    add_prefill(out, &u->speed, 1 - prefill);
    add_step(out, &w->speed, step);
    add_step(out, &u->speed, 1 - step);
}

static uint32_t chunk_of(const struct rtr_worker *w)
{
    return w->chunk_tokens ? w->chunk_tokens : RTR_COST_CHUNK;
}

/* Sequences that write there, or soon will, and their contexts. */
static double running_on(const struct rtr_worker *w, uint32_t tokens_each, double *contexts_out)
{
    uint32_t decoding = w->decoding > w->ended ? w->decoding - w->ended : 0, more = w->sequences > decoding ? w->sequences - decoding : 0;
    uint64_t context = decoding && w->context_tokens > w->ended_context ? w->context_tokens - w->ended_context : 0;
    *contexts_out = (double)context + (double)more * tokens_each;
    return (double)decoding + more;
}

/* Tokens of the prompt that are in the worker's cache; the last one is always computed. */
static uint32_t cached_on(const struct rtr_ask *ask, const struct rtr_worker *w)
{
    uint64_t n = ask->cached ? (uint64_t)ask->cached[w->slot] * w->block_tokens : 0;
    return n < ask->prompt_tokens ? (uint32_t)n : ask->prompt_tokens - 1;
}

/* What is ahead of a prompt that comes now: what was reported, less the time since, and what was given since. */
static double queue_s(const struct rtr_worker *w, const struct msg_speed *s, double running, double contexts, uint64_t now_us)
{
    bool reported = w->prefill_left >= w->fresh[1];
    double told = rtr_cost_prefill_s(s, chunk_of(w), (double)larger(w->prefill_left, w->fresh[1]), 0, running, contexts);
    double age = reported && now_us > w->load_at_us ? (double)(now_us - w->load_at_us) * 1e-6 : 0;
    return (told > age ? told - age : 0) + rtr_cost_prefill_s(s, chunk_of(w), (double)w->fresh[0], 0, running, contexts);
}

/* The reading of this prompt, from `cached` tokens on. */
static double read_s(const struct walk *x, const struct rtr_worker *w, uint32_t cached)
{
    double contexts, running = running_on(w, x->ask->prompt_tokens, &contexts);
    const struct reader *r = &x->p->reader[w->slot];
    return rtr_cost_prefill_s(&r->speed, chunk_of(w), x->ask->prompt_tokens - cached, cached, running, contexts);
}

/* Keeps the list of those who have most of the prompt in order. */
static void keep_source(struct rtr_policy *p, uint32_t slot)
{
    uint32_t at = p->source_count;
    if (!p->reader[slot].cached)
        return;
    while (at > 0 && p->reader[p->source[at - 1]].cached < p->reader[slot].cached)
        at--;
    if (at == SOURCES_MAX)
        return;
    uint32_t last = p->source_count < SOURCES_MAX ? p->source_count++ : SOURCES_MAX - 1;
    for (uint32_t i = last; i > at; i--)
        p->source[i] = p->source[i - 1];
    p->source[at] = slot;
}

static void look_at_reader(const struct walk *x, struct rtr_policy *p, const struct rtr_worker *w)
{
    struct reader *r = &p->reader[w->slot];
    double contexts, running = running_on(w, x->ask->prompt_tokens, &contexts);
    r->decodes = rtr_worker_decodes(w);
    r->prefills = rtr_worker_prefills(w) && !w->suspect;
    speed_of(w, &x->usual, &r->speed);
    r->cached = cached_on(x->ask, w);
    r->queue_s = queue_s(w, &r->speed, running, contexts, x->ask->now_us);
    r->prefill_s = read_s(x, w, r->cached);
    double tokens = x->ask->prompt_tokens - r->cached, chunk = chunk_of(w);
    double step = rtr_cost_prefill_s(&r->speed, chunk_of(w), tokens < chunk ? tokens : chunk, r->cached, running, contexts);
    if (r->prefills && !w->draining)
        p->prefills[p->prefill_count++] = w->slot;
    if (!w->suspect)
        keep_source(p, w->slot);
    r->slow = running > 0 && x->ask->step_max_us && step > (double)x->ask->step_max_us * 1e-6;
}

/* ---- candidates ---- */

static int rank_of(const struct pick *a)
{
    return a->suspect * 4 + a->unwanted * 2 + a->slow;
}

static bool same_band(const struct pick *a, const struct pick *b)
{
    double least = a->cost.ttft_s < b->cost.ttft_s ? a->cost.ttft_s : b->cost.ttft_s;
    double more = a->cost.ttft_s + b->cost.ttft_s - 2 * least;
    return more <= BAND_S + BAND_SHARE * least;
}

/* Both are as good as the best: is a to be taken before b? */
static bool calmer(const struct pick *a, const struct pick *b)
{
    double more = a->cost.step_s - b->cost.step_s, least = more > 0 ? b->cost.step_s : a->cost.step_s;
    if (more > BAND_SHARE * least || -more > BAND_SHARE * least)
        return more < 0;
    if (!a->prefill != !b->prefill)
        return a->prefill != NULL; /* the decode worker stays free for those who come next */
    uint64_t ta = outstanding(a->decode), tb = outstanding(b->decode);
    if (ta != tb)
        return ta < tb;
    if (a->decode != b->decode)
        return a->decode->given < b->decode->given;
    if (!a->prefill)
        return a->cost.ttft_s < b->cost.ttft_s;
    ta = outstanding(a->prefill), tb = outstanding(b->prefill);
    return ta != tb ? ta < tb : a->prefill->given < b->prefill->given;
}

static bool before(const struct walk *x, const struct pick *a, const struct pick *b)
{
    if (rank_of(a) != rank_of(b))
        return rank_of(a) < rank_of(b);
    if (x->ranking && rank_of(a) == rank_of(&x->best)) {
        bool ga = same_band(a, &x->best), gb = same_band(b, &x->best);
        if (ga && gb)
            return calmer(a, b);
    }
    return a->cost.ttft_s < b->cost.ttft_s;
}

/* A candidate of that rank whose first token does not come before least_s: it is none of those that are kept. */
static bool hopeless(const struct walk *x, int rank, double least_s)
{
    const struct pick *worst = x->ranking ? &x->kept[RTR_OPTIONS_MAX - 1] : &x->best;
    if (x->ranking ? x->kept_count < RTR_OPTIONS_MAX : !worst->decode)
        return false;
    if (rank != rank_of(worst))
        return rank > rank_of(worst);
    double band_s = x->ranking && rank == rank_of(&x->best) ? x->best.cost.ttft_s * (1 + BAND_SHARE) + BAND_S : 0;
    return least_s > worst->cost.ttft_s && least_s > band_s;
}

static void offer(struct walk *x, const struct pick *c)
{
    if (!x->ranking) {
        if (!x->best.decode || before(x, c, &x->best))
            x->best = *c;
        return;
    }
    uint32_t at = x->kept_count;
    while (at > 0 && before(x, c, &x->kept[at - 1]))
        at--;
    if (at == RTR_OPTIONS_MAX)
        return;
    uint32_t last = x->kept_count < RTR_OPTIONS_MAX ? x->kept_count++ : RTR_OPTIONS_MAX - 1;
    for (uint32_t i = last; i > at; i--)
        x->kept[i] = x->kept[i - 1];
    x->kept[at] = *c;
}

static const struct rtr_link *link_between(const struct walk *x, const struct rtr_worker *d, const struct rtr_worker *w)
{
    if (x->p->link[w->slot])
        return x->p->link[w->slot];
    for (uint32_t i = 0; i < w->link_count; i++)
        if (w->links[i].slot == d->slot)
            return &w->links[i];
    return NULL;
}

static void offer_local(struct walk *x, struct pick c)
{
    const struct reader *r = &x->p->reader[c.decode->slot];
    c.unwanted = x->want_remote;
    c.cached = r->cached;
    c.slow |= r->slow;
    c.measured = r->speed.prefill_samples > 0;
    c.cost.queue_s = r->queue_s;
    c.cost.prefill_s = r->prefill_s;
    rtr_cost_sum(&c.cost);
    offer(x, &c);
}

/* The decode worker gets the blocks that it lacks from one that has them, and computes the rest. */
static void offer_fetch(struct walk *x, const struct pick *common, const struct rtr_worker *from, const struct rtr_link *l)
{
    const struct reader *r = &x->p->reader[common->decode->slot], *o = &x->p->reader[from->slot];
    uint32_t block = from->block_tokens, blocks = block ? o->cached / block : 0;
    if (!block || blocks * block <= r->cached || hopeless(x, rank_of(common) | (int)r->slow, r->queue_s))
        return;
    struct pick c = *common;
    c.fetch = from;
    c.fetch_tokens = c.cached = blocks * block;
    c.slow |= r->slow;
    c.measured = r->speed.prefill_samples > 0;
    c.cost.queue_s = r->queue_s;
    struct rtr_link_cost link = link_of(l, &x->usual);
    c.cost.fetch_s = rtr_cost_link_s(&link, (double)(blocks - r->cached / block) * (double)from->block_bytes);
    c.cost.prefill_s = read_s(x, c.decode, c.cached);
    rtr_cost_sum(&c.cost);
    offer(x, &c);
}

static void offer_remote(struct walk *x, const struct pick *common, const struct rtr_worker *w, const struct rtr_link *l)
{
    const struct reader *r = &x->p->reader[w->slot], *d = &x->p->reader[common->decode->slot];
    if (hopeless(x, rank_of(common) | (int)r->slow, r->queue_s + r->prefill_s))
        return;
    struct pick c = *common;
    uint32_t n = x->ask->prompt_tokens, block = w->block_tokens ? w->block_tokens : 64, left = n - r->cached;
    double bytes = (double)((n + block - 1) / block - d->cached / block) * (double)w->block_bytes;
    double last = (double)((left < chunk_of(w) ? left : chunk_of(w)) / block + 1) * (double)w->block_bytes;
    c.prefill = w;
    c.cached = r->cached;
    c.slow |= r->slow;
    c.measured = r->speed.prefill_samples > 0;
    c.cost.queue_s = r->queue_s;
    c.cost.prefill_s = r->prefill_s;
    struct rtr_link_cost link = link_of(l, &x->usual);
    c.cost.exposed_s = rtr_cost_exposed_s(&link, bytes, last, r->prefill_s);
    rtr_cost_sum(&c.cost);
    offer(x, &c);
}

static void offer_all(struct walk *x, const struct rtr_worker *d)
{
    double contexts, running = running_on(d, x->ask->prompt_tokens, &contexts);
    struct pick c = {.decode = d, .suspect = d->suspect};
    uint32_t more = x->ask->sequences;
    c.cost.step_s = rtr_cost_step_s(&x->p->reader[d->slot].speed, running + more, contexts + (double)more * x->ask->prompt_tokens);
    c.slow = x->ask->step_max_us && c.cost.step_s > (double)x->ask->step_max_us * 1e-6;
    if (x->local)
        offer_local(x, c);
    memset((void *)(uintptr_t)x->p->link, 0, x->p->workers_max * sizeof(*x->p->link));
    for (uint32_t i = 0; i < d->link_count; i++)
        if (d->links[i].slot != RTR_NO_SLOT)
            x->p->link[d->links[i].slot] = &d->links[i];
    for (uint32_t i = 0; x->remote && i < x->p->prefill_count; i++) {
        const struct rtr_worker *w = &x->f->workers[x->p->prefills[i]];
        const struct rtr_link *l = w != d ? link_between(x, d, w) : NULL;
        if (l)
            offer_remote(x, &c, w, l);
    }
    for (uint32_t i = 0; x->remote && !x->want_remote && !x->ask->no_fetch && i < x->p->source_count; i++) {
        const struct rtr_worker *w = &x->f->workers[x->p->source[i]];
        const struct rtr_link *l = w != d ? link_between(x, d, w) : NULL;
        if (l)
            offer_fetch(x, &c, w, l);
    }
}

/* What has begun in one numerics class goes on in it: another one would write other tokens. */
static bool fits(const struct rtr_ask *ask, const struct rtr_worker *w)
{
    return !ask->numerics || (strncmp(ask->numerics, w->numerics, sizeof(w->numerics)) == 0 &&
                              strncmp(ask->kv_types, w->kv_types, sizeof(w->kv_types)) == 0);
}

static void set_modes(struct walk *x)
{
    msg_placement m = x->ask->placement;
    if (m == MSG_PLACE_AUTO && x->ask->local_threshold)
        m = x->ask->prompt_tokens > x->ask->local_threshold ? MSG_PLACE_REMOTE : MSG_PLACE_LOCAL;
    x->local = true; /* also as what is done when nobody is linked */
    x->remote = m != MSG_PLACE_LOCAL;
    x->want_remote = m == MSG_PLACE_REMOTE;
}

/* True: somebody decodes this model. */
static bool walk(struct walk *x)
{
    const struct rtr_ask *ask = x->ask;
    bool any = false;
    for (uint32_t i = 0; i < x->f->workers_max; i++) {
        const struct rtr_worker *w = &x->f->workers[i];
        if (!w->key || w->key == ask->avoid || w->model != ask->model || w->draining || !rtr_worker_decodes(w) || !fits(ask, w))
            continue;
        any = true;
        /* An idle worker takes any request, also one with more choices than the limit: it could never run otherwise. */
        if (!w->sequences || w->sequences + ask->sequences <= ask->sequences_max)
            offer_all(x, w);
    }
    return any;
}

/* ---- the answer ---- */

static void name_option(const struct pick *c, struct rtr_option *o)
{
    memset(o, 0, sizeof(*o));
    memcpy(o->decode, c->decode->id, sizeof(o->decode));
    if (c->prefill)
        memcpy(o->prefill, c->prefill->id, sizeof(o->prefill));
    if (c->fetch)
        memcpy(o->fetch, c->fetch->id, sizeof(o->fetch));
    o->cached_tokens = c->cached;
    o->fetch_tokens = c->fetch_tokens;
    o->suspect = c->suspect;
    o->unwanted = c->unwanted;
    o->slow = c->slow;
    o->cost = c->cost;
}

/* Seconds until those who wait before it are placed, were they spread over all who read prompts. */
static double ahead_s(const struct walk *x)
{
    uint32_t readers = 0;
    double token_s = NEVER_S;
    for (uint32_t i = 0; i < x->f->workers_max; i++) {
        const struct rtr_worker *w = &x->f->workers[i];
        if (!w->key || w->model != x->ask->model || w->draining)
            continue;
        readers++;
        if (x->p->reader[i].speed.prefill_token_s < token_s)
            token_s = x->p->reader[i].speed.prefill_token_s;
    }
    return readers ? (double)x->ask->ahead_tokens * token_s / readers : 0;
}

static kvs_status judge(const struct walk *x, struct rtr_place *out)
{
    const struct rtr_ask *ask = x->ask;
    const struct pick *c = &x->kept[0];
    double left_s = ask->deadline_us > ask->now_us ? (double)(ask->deadline_us - ask->now_us) * 1e-6 : 0;
    double late_s = ahead_s(x) + c->cost.ttft_s - left_s;
    out->late_s = ask->deadline_us && c->measured && !ask->urgent && late_s > 0 ? late_s : 0;
    if (out->late_s > 0)
        return KVS_BUSY_QUEUE;
    bool behind = ask->queue_max_us && c->cost.queue_s > (double)ask->queue_max_us * 1e-6;
    return behind && !ask->urgent ? KVS_BUSY_QUEUE : KVS_OK;
}

kvs_status rtr_policy_place(struct rtr_policy *p, const struct rtr_fleet *f, const struct rtr_ask *ask, struct rtr_place *out)
{
    KVS_ASSERT(ask->sequences > 0 && ask->prompt_tokens > 0);
    KVS_ASSERT(p->workers_max == f->workers_max);
    struct walk x = {.p = p, .f = f, .ask = ask};
    memset(out, 0, sizeof(*out));
    look_at_usual(f, ask->model, &x.usual);
    set_modes(&x);
    p->prefill_count = p->source_count = 0;
    for (uint32_t i = 0; i < f->workers_max; i++)
        if (f->workers[i].key && f->workers[i].model == ask->model)
            look_at_reader(&x, p, &f->workers[i]);
    if (!walk(&x))
        return KVS_BUSY_NO_WORKER;
    x.ranking = true;
    (void)walk(&x);
    if (!x.kept_count)
        return KVS_BUSY_QUEUE;
    const struct pick *c = &x.kept[0];
    out->decode = &f->workers[c->decode->slot];
    out->prefill = c->prefill ? &f->workers[c->prefill->slot] : NULL;
    out->computed_tokens = ask->prompt_tokens - c->cached;
    out->option_count = x.kept_count;
    for (uint32_t i = 0; i < x.kept_count; i++)
        name_option(&x.kept[i], &out->option[i]);
    return judge(&x, out);
}
