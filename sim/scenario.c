/* scenario.c - see scenario.h. One table of settings, one of actions; a line is cut into words and each word is asked for by name.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/scenario.h"

#include "sim/report.h"

#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 40

struct row {
    const char *name;
    size_t offset;
    uint32_t standard;
    bool fault;
};
#define ROW(field, standard) {#field, offsetof(struct sim_settings, field), standard, false}
#define FAULT(field) {#field, offsetof(struct sim_settings, field), 0, true}

static const struct row rows[] = {
    ROW(block_tokens, 8),     ROW(layers, 5),          ROW(group_layers, 2),       ROW(pages, 160),       ROW(context, 400),
    ROW(chunk_tokens, 32),    ROW(reserve_tokens, 64), ROW(batch, 8),              ROW(sequences, 96),    ROW(vocab, 97),
    ROW(kinds, 0),            ROW(window, 20),         ROW(snapshot_blocks, 3),
    ROW(tree_nodes, 0),       ROW(tree_ttl_us, 0), ROW(prefixes, 0),        ROW(prefix_tokens, 100), ROW(tenants, 1),
    ROW(calls, 64),           ROW(prefill_calls, 16),  ROW(send_window, 6),        ROW(queue_wait_us, 4000000), ROW(both_wait_us, 100000),
    ROW(requests_max, 512),   ROW(queue_max, 256),     ROW(worker_sequences, 48),  ROW(local_threshold, 16),
    ROW(deadline_us, 30000000), ROW(step_us, 1000),    ROW(token_us, 20),          ROW(latency_us, 200),  ROW(kv_us, 300),
    FAULT(kv_drop),           FAULT(kv_corrupt),       FAULT(kv_broken),           FAULT(kv_send_error),  FAULT(kv_double),
    FAULT(kv_late),           FAULT(kv_stuck), FAULT(kv_forge),         FAULT(doubled),             FAULT(numeric), FAULT(flush),        FAULT(preempt),
    FAULT(grant_refused),     FAULT(cache_skip),
    ROW(index_bytes, 1048576),     ROW(restart_us, 300000), ROW(restart_wait_us, 0), ROW(drained_back_us, 0), ROW(skew_us, 1000000000), ROW(slow_factor, 20),
    ROW(foreign, 0), ROW(etcd, 0),             ROW(lease_us, 10000000),
};
#define ROWS (sizeof rows / sizeof rows[0])

void sim_setting_put(struct sim_settings *s, uint32_t index, uint32_t value)
{
    KVS_ASSERT(index < ROWS);
    memcpy((char *)s + rows[index].offset, &value, sizeof value);
}

void sim_faults_off(struct sim_settings *s)
{
    for (uint32_t i = 0; i < ROWS; i++)
        if (rows[i].fault)
            sim_setting_put(s, i, 0);
}

/* --- words --- */

struct line {
    char *word[WORDS_MAX];
    uint32_t count, next;
    uint32_t number;
    struct kvs_error *err;
};

static bool bad(struct line *l, const char *what)
{
    const char *at = l->next < l->count ? l->word[l->next] : "the end of the line";
    (void)kvs_fail(l->err, KVS_REQ_INVALID, "line %u, at \"%s\": %s", l->number, at, what);
    return false;
}

static bool take(struct line *l, const char *word)
{
    if (l->next >= l->count || strcmp(l->word[l->next], word) != 0)
        return false;
    l->next++;
    return true;
}

/* A number with an optional unit of time; *end_out is behind it. */
static bool number(const char *text, const char **end_out, uint64_t *out)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    uint64_t n = strtoull(text, &end, 10);
    uint64_t scale = 1;
    if (strncmp(end, "us", 2) == 0)
        end += 2;
    else if (strncmp(end, "ms", 2) == 0)
        scale = 1000, end += 2;
    else if (*end == 's')
        scale = 1000000, end += 1;
    *out = n * scale;
    *end_out = end;
    return true;
}

static bool take_number(struct line *l, uint64_t *out)
{
    const char *end;
    if (l->next >= l->count || !number(l->word[l->next], &end, out) || *end != '\0')
        return bad(l, "a number or a time is due");
    l->next++;
    return true;
}

static bool take_range(struct line *l, struct sim_range *out)
{
    const char *end;
    if (l->next >= l->count || !number(l->word[l->next], &end, &out->low))
        return bad(l, "a number or a range A..B is due");
    out->high = out->low;
    if (strncmp(end, "..", 2) == 0 && (!number(end + 2, &end, &out->high) || out->high < out->low))
        return bad(l, "a range A..B with A <= B is due");
    if (*end != '\0')
        return bad(l, "a range A..B is due");
    l->next++;
    return true;
}

static bool take_who(struct line *l, char out[24])
{
    if (l->next >= l->count || strlen(l->word[l->next]) >= 24)
        return bad(l, "a node is due: a name, any, prefill or decode");
    kvs_format(out, 24, "%s", l->word[l->next++]);
    return true;
}

static bool take_setting(struct line *l, uint32_t *index_out, uint32_t *value_out)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < ROWS && l->next < l->count; i++) {
        if (strcmp(rows[i].name, l->word[l->next]) != 0)
            continue;
        l->next++;
        *index_out = i;
        if (!take_number(l, &n))
            return false;
        *value_out = (uint32_t)n;
        return n <= UINT32_MAX ? true : bad(l, "too large");
    }
    return bad(l, "no such setting");
}

/* --- lines --- */

static bool parse_request(struct line *l, struct sim_command *c)
{
    uint64_t n;
    struct {
        const char *word;
        struct sim_range *range;
        uint32_t *permille;
    } part[] = {{"prompt", &c->prompt, NULL},  {"answer", &c->answer, NULL}, {"choices", &c->choices, NULL},
                {"deadline", &c->deadline, NULL}, {"leave", NULL, &c->leave},   {"slow", NULL, &c->slow},
                {"stop", NULL, &c->stop},      {"exact", NULL, &c->exact},   {"prefix", NULL, &c->prefix}, {"fetch", NULL, &c->fetch},
                {"poison", NULL, &c->poison}};
    c->prompt = (struct sim_range){20, 120};
    c->answer = (struct sim_range){1, 40};
    c->choices = (struct sim_range){1, 1};
    while (l->next < l->count) {
        bool known = false;
        if (take(l, "remote"))
            c->placement = MSG_PLACE_REMOTE, known = true;
        else if (take(l, "local"))
            c->placement = MSG_PLACE_LOCAL, known = true;
        else if (take(l, "auto"))
            known = true;
        for (size_t i = 0; !known && i < sizeof part / sizeof part[0]; i++) {
            if (!take(l, part[i].word))
                continue;
            known = true;
            if (part[i].range != NULL ? !take_range(l, part[i].range) : !take_number(l, &n))
                return false;
            if (part[i].permille != NULL)
                *part[i].permille = (uint32_t)n;
        }
        if (!known)
            return true; /* from, until */
    }
    return true;
}

struct action_row {
    const char *word;
    sim_action action;
    uint32_t nodes;
    bool lasts;
};

static bool take_action(struct line *l, struct sim_command *c, const struct action_row *row, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!take(l, row[i].word))
            continue;
        c->action = row[i].action;
        for (uint32_t k = 0; k < row[i].nodes; k++)
            if (!take_who(l, c->who[k]))
                return false;
        if (row[i].lasts && (!take(l, "for") || !take_range(l, &c->duration)))
            return bad(l, "for A..B is due");
        return true;
    }
    return bad(l, "no such action");
}

static bool take_role(struct line *l, struct sim_command *c)
{
    static const char *const name[3] = {"prefill", "decode", "both"};
    static const msg_role role[3] = {MSG_ROLE_PREFILL, MSG_ROLE_DECODE, MSG_ROLE_BOTH};
    for (int i = 0; i < 3; i++)
        if (take(l, name[i])) {
            c->role = role[i];
            return true;
        }
    return bad(l, "prefill, decode or both is due");
}

static bool parse_action(struct line *l, struct sim_command *c)
{
    static const struct action_row action[] = {
        {"request", SIM_REQUEST, 0, false}, {"kill", SIM_KILL, 1, false},           {"hang", SIM_HANG, 1, true},
        {"break", SIM_BREAK, 2, false},     {"partition", SIM_PARTITION, 2, true}, {"oneway", SIM_ONE_WAY, 2, true},
        {"kverror", SIM_KVERROR, 1, false}, {"preempt", SIM_PREEMPT, 1, false},    {"drain", SIM_DRAIN, 1, false},
        {"role", SIM_ROLE, 1, false},       {"slow", SIM_SLOW, 1, true},
        {"set", SIM_SET, 0, false},         {"heal", SIM_HEAL, 0, false}};
    static const struct action_row etcd[] = {
        {"kill", SIM_ETCD_KILL, 0, true},       {"wipe", SIM_ETCD_WIPE, 0, true},  {"hang", SIM_ETCD_HANG, 0, true},
        {"lag", SIM_ETCD_LAG, 0, true},         {"leaderless", SIM_ETCD_LEADERLESS, 0, true},
        {"compact", SIM_ETCD_COMPACT, 0, false}, {"cut", SIM_ETCD_CUT, 1, true},    {"expire", SIM_ETCD_EXPIRE, 1, false},
        {"deaf", SIM_ETCD_DEAF, 1, false}};
    if (take(l, "etcd"))
        return take_action(l, c, etcd, sizeof etcd / sizeof etcd[0]);
    if (!take_action(l, c, action, sizeof action / sizeof action[0]))
        return false;
    if (c->action == SIM_SET)
        return take_setting(l, &c->setting, &c->value);
    if (c->action == SIM_ROLE)
        return take_role(l, c);
    return c->action != SIM_REQUEST || parse_request(l, c);
}

static bool parse_command(struct line *l, struct sim_scenario *s, bool again)
{
    if (s->command_count == SIM_COMMANDS_MAX)
        return bad(l, "too many commands");
    struct sim_command *c = &s->command[s->command_count++];
    *c = (struct sim_command){.until_us = SIM_FOREVER};
    if (!take_number(l, again ? &c->every_us : &c->at_us) || !parse_action(l, c))
        return false;
    if (again && c->every_us == 0)
        return bad(l, "every 0 never ends");
    if (again && take(l, "from") && !take_number(l, &c->at_us))
        return false;
    if (again && take(l, "until") && !take_number(l, &c->until_us))
        return false;
    return true;
}

static bool parse_expect(struct line *l, struct sim_scenario *s, bool total)
{
    if (s->expect_count == SIM_EXPECTS_MAX)
        return bad(l, "too many expectations");
    struct sim_expect *e = &s->expect[s->expect_count++];
    e->total = total;
    if (l->next >= l->count || !sim_counter_find(l->word[l->next], &e->counter))
        return bad(l, "no such counter");
    l->next++;
    if (l->next >= l->count || strlen(l->word[l->next]) != 1 || strchr("=<>", l->word[l->next][0]) == NULL)
        return bad(l, "one of = < > is due");
    e->op = l->word[l->next++][0];
    return take_number(l, &e->number);
}

static bool parse_workers(struct line *l, struct sim_scenario *s)
{
    static const char *const kind[4] = {"prefill", "decode", "both", "routers"};
    uint64_t n;
    while (l->next < l->count) {
        bool known = false;
        for (int i = 0; i < 4 && !known; i++) {
            if (!take(l, kind[i]))
                continue;
            known = true;
            if (!take_number(l, &n))
                return false;
            s->workers[i] = n <= SIM_WORKERS_MAX ? (uint32_t)n : SIM_WORKERS_MAX + 1;
        }
        if (!known)
            return bad(l, "prefill N, decode N, both N or routers N is due");
    }
    if (s->workers[3] < 1 || s->workers[3] > SIM_ROUTERS_MAX)
        return bad(l, "1 to 4 routers are due");
    return s->workers[0] + s->workers[1] + s->workers[2] <= SIM_WORKERS_MAX ? true : bad(l, "50 workers are the most");
}

static bool parse_line(struct line *l, struct sim_scenario *s)
{
    uint32_t index, value;
    bool ok;
    if (l->count == 0)
        return true;
    if (take(l, "set")) {
        ok = take_setting(l, &index, &value);
        if (ok)
            sim_setting_put(&s->settings, index, value);
    } else if (take(l, "workers"))
        ok = parse_workers(l, s);
    else if (take(l, "at"))
        ok = parse_command(l, s, false);
    else if (take(l, "every"))
        ok = parse_command(l, s, true);
    else if (take(l, "expect"))
        ok = parse_expect(l, s, false);
    else if (take(l, "total"))
        ok = parse_expect(l, s, true);
    else
        return bad(l, "a line begins with set, workers, at, every, expect or total");
    return ok && (l->next == l->count || bad(l, "this is too much"));
}

/* Cuts [begin, end) into words; both lie in a writable copy. */
static void split(char *begin, char *end, struct line *l)
{
    l->count = l->next = 0;
    for (char *p = begin; p < end && *p != '#';) {
        if (*p == ' ' || *p == '\t' || *p == '\r') {
            *p++ = '\0';
            continue;
        }
        if (l->count < WORDS_MAX)
            l->word[l->count++] = p;
        while (p < end && *p != ' ' && *p != '\t' && *p != '\r' && *p != '#')
            p++;
        if (p < end && *p == '#') {
            *p = '\0';
            return;
        }
    }
    *end = '\0';
}

kvs_status sim_scenario_parse(const char *text, struct sim_scenario *out, struct kvs_error *err)
{
    struct line l = {.err = err};
    size_t n = strlen(text);
    char *copy = malloc(n + 2);
    if (copy == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    memcpy(copy, text, n + 1);
    copy[n + 1] = '\0';
    *out = (struct sim_scenario){.workers = {2, 2, 0, 1}};
    for (uint32_t i = 0; i < ROWS; i++)
        sim_setting_put(&out->settings, i, rows[i].standard);
    bool ok = true;
    for (char *begin = copy; ok && begin <= copy + n;) {
        char *end = strchr(begin, '\n');
        end = end != NULL ? end : copy + n;
        l.number++;
        split(begin, end, &l);
        ok = parse_line(&l, out);
        begin = end + 1;
    }
    free(copy);
    if (ok && out->workers[3] > 1 && out->settings.etcd == 0)
        return kvs_fail(err, KVS_REQ_INVALID, "more than one router needs \"set etcd 1\"");
    return ok ? KVS_OK : KVS_REQ_INVALID;
}
