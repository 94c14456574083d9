/* client.c - see client.h. The expected answer of every choice is computed before the request is sent (oracle.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/client.h"

#include "sim/net.h"
#include "sim/oracle.h"
#include "sim/worker.h"

#include <stdlib.h>
#include <string.h>

#define GRACE_US 3000000u /* after healing: time for streams to come back */
#define GRACE_ETCD_US 8000000u /* the same, with the pauses between tries of etcd */
#define SOON_US 10000000u /* what is begun after that is served within so long */
#define DEATHS_MAX 2u /* as many workers may die of one request */
#define HELD_US 20000u    /* what was stopped or paused comes to rest within so long */
#define ORPHANS_US 2000000u /* what a dead router has left behind, too */
#define BACK_US 1000000u  /* a request that is over leaves the workers within so long */

void sim_client_create(struct sim *s)
{
    s->client = calloc(1, sizeof *s->client);
    KVS_ASSERT(s->client != NULL);
}

void sim_client_free(struct sim *s)
{
    struct sim_client *c = s->client;
    for (uint32_t i = 0; i < c->count; i++) {
        for (uint32_t k = 0; k < RTR_CHOICES_MAX; k++)
            free(c->request[i]->choice[k].answer);
        free(c->request[i]->prompt);
        free(c->request[i]);
    }
    free(c->request);
    free(c);
}

static struct sim_request *find(struct sim *s, uint64_t id)
{
    KVS_ASSERT(id >= 1 && id <= s->client->count);
    return s->client->request[id - 1];
}

/* When its deadline has passed; a router that is stopped cannot say so before it goes on. */
uint64_t sim_client_latest_us(const struct sim *s, const struct sim_request *r)
{
    const struct sim_node *n = &s->node[r->router];
    if (n->hung)
        return SIM_FOREVER;
    return (n->hung_us > r->deadline_us ? n->hung_us : r->deadline_us) + 1000;
}

/* --- asking --- */

static void late_word(struct sim *s, struct sim_event *e)
{
    sim_router_feed(s, e->node, &(struct rtr_event){.type = (rtr_event_type)e->id, .id = e->a, .choice = (uint32_t)(e->b >> 1), .flag = e->b & 1});
}

/* What a client does reaches its router when that runs. */
static void to_router(struct sim *s, const struct sim_request *r, const struct rtr_event *ev)
{
    const struct sim_node *n = &s->node[r->router];
    if (!n->alive || n->life != r->router_life)
        return;
    if (n->hung)
        sim_post(s, s->now_us, &(struct sim_event){.run = late_word, .node = r->router, .life = n->life, .id = (uint64_t)ev->type, .a = ev->id,
                                                   .b = (uint64_t)ev->choice << 1 | ev->flag});
    else
        sim_router_feed(s, r->router, ev);
}

static void leave(struct sim *s, struct sim_event *e)
{
    struct sim_request *r = find(s, e->id);
    if (r->over)
        return;
    r->left = true;
    sim_fault(s, SIM_N_leavers);
    sim_note(s, SIM_NOBODY, "the client of request %r leaves", r->id);
    to_router(s, r, &(struct rtr_event){.type = RTR_EV_GONE, .id = r->id});
}

static void pause_or_resume(struct sim *s, struct sim_event *e)
{
    struct sim_request *r = find(s, e->id);
    r->paused_us = e->a != 0 ? s->now_us : 0;
    if (!r->over)
        to_router(s, r, &(struct rtr_event){.type = RTR_EV_PAUSE, .id = e->id, .flag = e->a != 0});
}

static void stop_choice(struct sim *s, struct sim_event *e)
{
    struct sim_request *r = find(s, e->id);
    struct sim_choice *c = &r->choice[e->a];
    if (r->over || c->ended)
        return;
    c->stopped = true;
    c->stopped_us = s->now_us;
    sim_fault(s, SIM_N_stops);
    to_router(s, r, &(struct rtr_event){.type = RTR_EV_CHOICE_STOP, .id = r->id, .choice = (uint32_t)e->a});
}

static void post_client(struct sim *s, uint64_t at_us, sim_run_fn run, uint64_t id, uint64_t a)
{
    sim_post(s, at_us, &(struct sim_event){.run = run, .node = SIM_NOBODY, .id = id, .a = a});
}

/* Token i of shared beginning k: the same for everybody who draws it. */
static int32_t prefix_token(const struct sim *s, uint64_t k, uint32_t i)
{
    return (int32_t)(sim_mix(sim_mix(s->seed, k), i) % s->set.vocab);
}

static void make_prompt(struct sim *s, const struct sim_command *c, struct sim_request *r)
{
    uint32_t shared = 0;
    uint64_t k = 0;
    if (s->set.prefixes > 0 && sim_chance(s, c->prefix)) {
        k = sim_draw(s, 0, s->set.prefixes - 1);
        shared = (uint32_t)sim_draw(s, 1, s->set.prefix_tokens);
    }
    if (s->set.tenants > 1)
        r->tenant = (uint32_t)sim_draw(s, 0, s->set.tenants - 1);
    for (uint32_t i = 0; i < r->prompt_count; i++)
        r->prompt[i] = i < shared ? prefix_token(s, k, i) : (int32_t)sim_draw(s, 0, s->set.vocab - 1);
}

static struct sim_request *make_request(struct sim *s, const struct sim_command *c, struct rtr_request *ask)
{
    struct sim_client *k = s->client;
    struct sim_request *r = calloc(1, sizeof *r);
    if (k->count == k->cap) {
        k->cap = k->cap != 0 ? k->cap * 2 : 256;
        k->request = realloc(k->request, k->cap * sizeof(struct sim_request *));
    }
    KVS_ASSERT(r != NULL && k->request != NULL);
    k->request[k->count++] = r;
    r->id = k->count;
    r->begun_us = s->now_us;
    r->choices = (uint32_t)sim_draw(s, c->choices.low, c->choices.high);
    r->prompt_count = (uint32_t)sim_draw(s, c->prompt.low, c->prompt.high);
    if (sim_chance(s, c->exact))
        r->prompt_count = (r->prompt_count + s->set.block_tokens - 1) / s->set.block_tokens * s->set.block_tokens;
    if (r->prompt_count >= s->set.context)
        r->prompt_count = s->set.context - 1;
    r->max_tokens = (uint32_t)sim_draw(s, c->answer.low, c->answer.high);
    if (r->max_tokens > s->set.context - r->prompt_count)
        r->max_tokens = s->set.context - r->prompt_count;
    r->ignore_eos = sim_chance(s, 200);
    r->poison = sim_chance(s, c->poison);
    sim_count(s, SIM_N_poisons, r->poison);
    r->prompt = calloc(r->prompt_count, sizeof *r->prompt);
    KVS_ASSERT(r->prompt != NULL && r->choices <= RTR_CHOICES_MAX);
    make_prompt(s, c, r);
    *ask = (struct rtr_request){.id = r->id, .model = 1, .choices = r->choices, .tokens = r->prompt, .token_count = r->prompt_count,
                                .max_tokens = r->max_tokens, .stop_ids = {SIM_STOP_ID}, .stop_id_count = 1, .ignore_eos = r->ignore_eos,
                                .placement = c->placement};
    if (sim_chance(s, c->fetch)) /* a hint, right or wrong: whoever is named may have it, or not, or be dead */
        kvs_format(ask->fetch_worker, sizeof ask->fetch_worker, "%s", s->node[sim_draw(s, s->router_count, s->node_count - 1)].id);
    if (s->set.tenants > 1)
        kvs_format(ask->tenant, sizeof ask->tenant, "tenant-%u", r->tenant);
    ask->sampling = (struct msg_sampling){.temperature = 0.5f, .top_p = 0.9f, .top_k = (uint32_t)sim_draw(s, 0, 50), .seed = kvs_rng_next(&s->rng)};
    for (uint32_t i = 0; i < r->choices; i++) {
        r->choice[i].answer = calloc(r->max_tokens, sizeof(int32_t));
        KVS_ASSERT(r->choice[i].answer != NULL);
        r->choice[i].answer_count = sim_answer(r->prompt, r->prompt_count, sim_caches(&s->set), &ask->sampling, i, r->max_tokens, r->ignore_eos,
                                               s->set.vocab, r->choice[i].answer);
    }
    return r;
}

/* A router that runs; one that is stopped would take the connection, but nobody would look at it: clients try the next. */
static uint32_t choose_router(struct sim *s)
{
    uint32_t from = s->router_count > 1 ? (uint32_t)sim_draw(s, 0, s->router_count - 1) : 0;
    for (uint32_t k = 0; k < s->router_count; k++) {
        uint32_t i = (from + k) % s->router_count;
        if (s->node[i].alive && !s->node[i].hung)
            return i;
    }
    return SIM_NOBODY;
}

void sim_client_ask(struct sim *s, const struct sim_command *c)
{
    struct rtr_request ask;
    uint32_t router = choose_router(s);
    if (router == SIM_NOBODY) {
        sim_count(s, SIM_N_no_router, 1);
        return;
    }
    struct sim_request *r = make_request(s, c, &ask);
    r->router = router;
    r->router_life = s->node[router].life;
    uint64_t longest = s->set.deadline_us, mine = sim_draw(s, c->deadline.low, c->deadline.high);
    r->deadline_us = s->now_us + (mine != 0 && mine < longest ? mine : longest);
    ask.deadline_us = mine != 0 ? sim_local(s, router) + mine : 0;
    s->client->open++;
    sim_count(s, SIM_N_requests, 1);
    if (sim_chance(s, c->leave))
        post_client(s, sim_in(s, 0, 200000), leave, r->id, 0);
    if (sim_chance(s, c->slow))
        r->pause_at = (uint32_t)sim_draw(s, 1, r->max_tokens);
    if (sim_chance(s, c->stop)) {
        r->stop_at = (uint32_t)sim_draw(s, 1, r->max_tokens);
        r->stop_choice = (uint32_t)sim_draw(s, 0, r->choices - 1);
    }
    sim_note(s, SIM_NOBODY, "request %r: prompt of %u, up to %u tokens, %u choices", r->id, r->prompt_count, r->max_tokens, r->choices);
    sim_router_feed(s, r->router, &(struct rtr_event){.type = RTR_EV_REQUEST, .request = &ask});
}

/* --- answers --- */

static void react(struct sim *s, struct sim_request *r, uint32_t choice)
{
    const struct sim_choice *c = &r->choice[choice];
    if (r->pause_at != 0 && c->got >= r->pause_at) {
        r->pause_at = 0;
        sim_fault(s, SIM_N_slow_clients);
        post_client(s, s->now_us, pause_or_resume, r->id, true);
        post_client(s, sim_in(s, 1000, 400000), pause_or_resume, r->id, false);
    }
    if (r->stop_at != 0 && choice == r->stop_choice && c->got >= r->stop_at) {
        r->stop_at = 0;
        post_client(s, s->now_us, stop_choice, r->id, choice);
    }
}

/* No KV goes from one numerics class to another, and what has begun in one goes on in it. */
static void check_class(struct sim *s, struct sim_request *r, uint32_t decode_node, const struct msg_generate *m)
{
    bool begun = false, foreign = s->node[decode_node].foreign;
    for (uint32_t i = 0; i < r->choices; i++)
        begun = begun || r->choice[i].got != 0;
    if (begun && r->foreign != foreign)
        sim_fail(s, "request %llu has begun in one numerics class and goes on in another, at %s", (unsigned long long)r->id, s->node[decode_node].id);
    r->foreign = foreign;
    for (uint32_t i = s->router_count; i < s->node_count; i++)
        if (s->node[i].foreign != foreign && (strcmp(s->node[i].id, m->prefill_worker) == 0 || strcmp(s->node[i].id, m->fetch_worker) == 0))
            sim_fail(s, "request %llu: %s is to get KV from %s, which is of another numerics class", (unsigned long long)r->id, s->node[decode_node].id,
                     s->node[i].id);
}

void sim_client_placed(struct sim *s, uint64_t id, uint32_t attempt, uint32_t decode_node, const struct msg_generate *m)
{
    struct sim_request *r = find(s, id);
    if (decode_node >= s->router_count)
        check_class(s, r, decode_node, m);
    r->attempt = attempt;
    r->decode_node = decode_node;
    kvs_format(r->prefill_id, sizeof r->prefill_id, "%s", m->prefill_worker);
    uint32_t at = r->places++ % SIM_PLACES;
    r->placed[at].decode_node = decode_node;
    memcpy(r->placed[at].prefill_id, r->prefill_id, sizeof r->prefill_id);
}

void sim_client_prefilled(struct sim *s, uint64_t id, uint32_t decode_node, uint32_t prefill_node)
{
    const struct sim_request *r = find(s, id);
    bool there = false, so = false;
    for (uint32_t i = 0; i < r->places && i < SIM_PLACES; i++) {
        there = there || r->placed[i].decode_node == decode_node;
        so = so || (r->placed[i].decode_node == decode_node && strcmp(r->placed[i].prefill_id, s->node[prefill_node].id) == 0);
    }
    if (there && !so)
        sim_fail(s, "request %llu was to be prefilled by \"%s\", and %s was asked", (unsigned long long)id, r->prefill_id, s->node[prefill_node].id);
}

/* A worker goes on writing what nobody wants, or what is held back (but for a first token whose KV was on its way already). */
void sim_client_entry(struct sim *s, const struct sim_conn *conn, const struct msg_token *t)
{
    const struct sim_request *r = find(s, t->request);
    sim_about_request(s, t->request);
    if (t->id < 0 || t->has_placed || t->attempt != r->attempt || t->choice >= r->choices || !sim_conn_calm(s, conn))
        return;
    const struct sim_choice *c = &r->choice[t->choice];
    if (c->stopped && s->now_us > c->stopped_us + HELD_US)
        sim_fail(s, "request %llu choice %u was stopped %u ms ago and is still written", (unsigned long long)r->id, t->choice, HELD_US / 1000);
    if (r->paused_us != 0 && s->now_us > r->paused_us + HELD_US)
        sim_fail(s, "request %llu was paused %u ms ago and is still written", (unsigned long long)r->id, HELD_US / 1000);
}

static int32_t token_at(const struct sim_request *r, uint32_t choice, uint32_t i)
{
    return i < r->prompt_count ? r->prompt[i] : r->choice[choice].answer[i - r->prompt_count];
}

/* Cached tokens must have been seen before, in a request of the same tenant: somebody else's must not be found. */
static void check_cached(struct sim *s, const struct sim_request *r, uint32_t cached)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < s->client->count && longest < cached; i++) {
        const struct sim_request *o = s->client->request[i];
        for (uint32_t k = 0; k < o->choices && o->tenant == r->tenant; k++) {
            uint32_t n = 0, end = o->prompt_count + o->choice[k].answer_count;
            while (n < cached && n < end && n < r->prompt_count && token_at(o, k, n) == r->prompt[n] && (o != r || r->choices > 1 || r->attempt > 1))
                n++;
            longest = n > longest ? n : longest;
        }
    }
    if (longest < cached)
        sim_fail(s, "request %llu of tenant %u: %u tokens were found in a cache, but that tenant has had only %u of them", (unsigned long long)r->id,
                 r->tenant, cached, longest);
    if (cached >= r->prompt_count)
        sim_fail(s, "request %llu: the whole prompt was found in a cache, so where did its last logits come from?", (unsigned long long)r->id);
}

/* What the first token says about how the prompt's KV came to be. */
static void check_placed(struct sim *s, const struct sim_request *r, const struct msg_placed *p)
{
    const struct sim_settings *c = &s->set;
    unsigned long long n = (unsigned long long)r->id;
    uint64_t blocks = (r->prompt_count + c->block_tokens - 1) / c->block_tokens, groups = (c->layers + c->group_layers - 1) / c->group_layers;
    bool travelled = p->pages > 0;
    const char *who = p->mode == MSG_PLACE_REMOTE ? r->prefill_id : s->node[r->decode_node].id;
    if (strcmp(p->prefill_worker, who) != 0)
        sim_fail(s, "request %llu: prefilled by \"%s\", it says, but it was %s", n, p->prefill_worker, who);
    if (travelled != (p->bytes > 0) || travelled != (strcmp(p->transport, "loopback") == 0))
        sim_fail(s, "request %llu: %u pages, %llu bytes over \"%s\"", n, p->pages, (unsigned long long)p->bytes, p->transport);
    if (p->mode == MSG_PLACE_LOCAL && c->tree_nodes == 0 && p->cached_tokens + p->local_prefill_tokens < r->prompt_count)
        sim_fail(s, "request %llu: local, but only %u of %u tokens were computed", n, p->local_prefill_tokens, r->prompt_count);
    if (p->mode == MSG_PLACE_REMOTE && c->tree_nodes == 0 && c->kinds == 0 && p->local_prefill_tokens == 0 &&
        (p->pages != blocks * groups || p->bytes != blocks * c->block_tokens * c->layers * 8))
        sim_fail(s, "request %llu: remote, with %u of %llu pages and %llu bytes", n, p->pages, (unsigned long long)(blocks * groups),
                 (unsigned long long)p->bytes);
    if (p->mode != MSG_PLACE_LOCAL && p->mode != MSG_PLACE_REMOTE)
        sim_fail(s, "request %llu: placed neither here nor there", n);
    sim_count(s, SIM_N_cached_tokens, p->cached_tokens);
    if (p->cached_tokens > 0)
        check_cached(s, r, p->cached_tokens);
}

void sim_client_token(struct sim *s, uint64_t id, uint32_t choice, const struct msg_token *t)
{
    struct sim_request *r = find(s, id);
    unsigned long long n = (unsigned long long)id;
    sim_about_request(s, id);
    if (r->over) {
        sim_fail(s, "request %llu: a token after its end", n);
        return;
    }
    if (choice >= r->choices || t->choice != choice) {
        sim_fail(s, "request %llu: a token for choice %u", n, choice);
        return;
    }
    struct sim_choice *c = &r->choice[choice];
    if (c->ended || c->stopped)
        sim_fail(s, "request %llu choice %u: a token after the choice's end", n, choice);
    else if (t->id < 0)
        sim_fail(s, "request %llu choice %u: an end without a token (finish %d)", n, choice, (int)t->finish);
    else if (t->index != c->got)
        sim_fail(s, "request %llu choice %u: token %u came where %u was due", n, choice, t->index, c->got);
    else if (c->got >= c->answer_count || t->id != c->answer[c->got])
        sim_fail(s, "request %llu choice %u: token %u is %d and should be %d", n, choice, c->got, t->id,
                 c->got < c->answer_count ? c->answer[c->got] : -1);
    if (s->failed)
        return;
    c->got++;
    sim_count(s, SIM_N_tokens, 1);
    msg_finish due = c->got < c->answer_count                                 ? MSG_RUNNING
                     : t->id == SIM_STOP_ID && !r->ignore_eos ? MSG_FINISH_STOP
                                                                               : MSG_FINISH_LENGTH;
    if (t->finish != due)
        sim_fail(s, "request %llu choice %u: token %u of %u has finish %d and should have %d", n, choice, c->got, c->answer_count, (int)t->finish, (int)due);
    c->ended = t->finish != MSG_RUNNING;
    if ((c->got == 1) != t->has_placed)
        sim_fail(s, "request %llu choice %u: token %u %s placement", n, choice, t->index, t->has_placed ? "repeats the" : "lacks its");
    if (t->has_placed)
        check_placed(s, r, &t->placed);
    react(s, r, choice);
}

/* Is a worker that could know better still busy with it? */
static void check_gone(struct sim *s, struct sim_event *e)
{
    sim_about_request(s, e->id);
    for (uint32_t i = 0; i < s->conn_count; i++) {
        const struct sim_conn *c = s->conn[i];
        for (uint32_t k = 0; k < c->call_count && sim_conn_calm(s, c); k++)
            if (c->call[k].method == MSG_GENERATE && c->call[k].id == e->id && !c->broken && c->call[k].callee != SIM_CALLEE_DONE)
                sim_fail(s, "request %llu is over since %u ms, but %s still has it", (unsigned long long)e->id, BACK_US / 1000,
                         s->node[c->node[0]].id);
    }
}

/* An error must have a reason in what was done to the cluster. */
static bool has_reason(const struct sim *s, kvs_status st)
{
    const uint64_t *n = s->report.n;
    switch (st) {
    case KVS_OK:
    case KVS_REQ_CANCELLED:
    case KVS_REQ_DEADLINE:
    case KVS_BUSY_PAGES:
    case KVS_BUSY_QUEUE:
    case KVS_BUSY_FULL: return true;
    case KVS_BUSY_NO_WORKER: return n[SIM_N_faults] > 0;
    case KVS_PEER_LOST: return n[SIM_N_kills] + n[SIM_N_hangs] + n[SIM_N_breaks] + n[SIM_N_partitions] > 0;
    case KVS_SELF_NUMERIC: return n[SIM_N_numerics] > 0;
    case KVS_SELF_STOPPING: return n[SIM_N_drains] > 0;
    default: return false;
    }
}

static void check_end(struct sim *s, const struct sim_request *r, kvs_status st, const char *text)
{
    unsigned long long n = (unsigned long long)r->id;
    bool complete = true;
    for (uint32_t i = 0; i < r->choices; i++)
        complete = complete && (r->choice[i].ended || r->choice[i].stopped);
    if (st == KVS_OK && !complete)
        sim_fail(s, "request %llu: OK, but an answer is not complete", n);
    if (st == KVS_REQ_CANCELLED && !r->left)
        sim_fail(s, "request %llu: cancelled, but its client waits (%s)", n, text);
    if (st == KVS_REQ_DEADLINE && s->now_us + 2000 < r->deadline_us)
        sim_fail(s, "request %llu: DEADLINE %llu us before it", n, (unsigned long long)(r->deadline_us - s->now_us));
    if (st != KVS_OK && text[0] == '\0')
        sim_fail(s, "request %llu: an error (%s) without a cause", n, kvs_status_name(st));
    if (!has_reason(s, st))
        sim_fail(s, "request %llu: nothing was done that could end it with %s (%s)", n, kvs_status_name(st), text);
    if (s->now_us > sim_client_latest_us(s, r))
        sim_fail(s, "request %llu: ended %llu us after its deadline", n, (unsigned long long)(s->now_us - r->deadline_us));
    bool promised = s->heal_us != SIM_FOREVER && r->begun_us >= s->heal_us + (s->set.etcd ? GRACE_ETCD_US : GRACE_US) && !r->left && r->deadline_us >= r->begun_us + 2000000;
    if (promised && st != KVS_OK)
        sim_fail(s, "request %llu: begun well after all faults were healed, but it ended with %s (%s)", n, kvs_status_name(st), text);
    if (promised && s->now_us > r->begun_us + SOON_US)
        sim_fail(s, "request %llu: begun well after all faults were healed, but it took %llu ms", n, (unsigned long long)(s->now_us - r->begun_us) / 1000);
    sim_count(s, SIM_N_after_heal, promised);
}

bool sim_client_poisons(struct sim *s, uint64_t id)
{
    struct sim_request *r = find(s, id);
    if (!r->poison || s->heal_us != SIM_FOREVER)
        return false;
    sim_about_request(s, id);
    if (++r->deaths > DEATHS_MAX)
        sim_fail(s, "request %llu has killed %u workers and is given to one more", (unsigned long long)id, DEATHS_MAX);
    return true;
}

void sim_client_cut(struct sim *s, uint32_t router)
{
    for (uint32_t i = s->client->first_open; i < s->client->count; i++) {
        struct sim_request *r = s->client->request[i];
        if (r->over || r->router != router || r->router_life != s->node[router].life)
            continue;
        sim_note(s, SIM_NOBODY, "the connection of request %r is cut, %u tokens", r->id, r->choice[0].got);
        r->over = true;
        s->client->open--;
        sim_count(s, SIM_N_cut, 1);
        post_client(s, s->now_us + ORPHANS_US, check_gone, r->id, 0);
    }
}

void sim_client_over(struct sim *s, uint64_t id, kvs_status st, const char *text, bool rejected)
{
    struct sim_request *r = find(s, id);
    sim_about_request(s, id);
    if (r->over) {
        sim_fail(s, "request %llu ends a second time (%s)", (unsigned long long)id, kvs_status_name(st));
        return;
    }
    if (rejected && s->now_us != r->begun_us)
        sim_fail(s, "request %llu is rejected after it was accepted", (unsigned long long)id);
    r->over = true;
    s->client->open--;
    sim_note(s, SIM_NOBODY, "request %r is over: %s after %u us, %u tokens", id, st, s->now_us - r->begun_us, r->choice[0].got);
    check_end(s, r, st, text);
    post_client(s, s->now_us + BACK_US, check_gone, id, 0);
    uint64_t ms = (s->now_us - r->begun_us) / 1000;
    if (ms > s->report.n[SIM_N_slowest_ms]) {
        s->report.n[SIM_N_slowest_ms] = ms;
        s->witness[SIM_N_slowest_ms] = id;
    }
    sim_counter end = st == KVS_OK ? SIM_N_ok : rejected ? SIM_N_rejected : st == KVS_REQ_CANCELLED ? SIM_N_left : SIM_N_errors;
    sim_count(s, end, 1);
    s->witness[end] = id;
    if (st == KVS_REQ_DEADLINE) {
        sim_count(s, SIM_N_deadlines, 1);
        s->witness[SIM_N_deadlines] = id;
    }
}
