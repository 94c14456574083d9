/* etcd_taken.c - see etcd_taken.h. A look, not a lock: a key may be that of a life which has just been killed, so nothing is refused for it. An
 * etcd that does not answer, or wants a password, is the daemons' matter: they say so.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/etcd_taken.h"

#include "cli/http_client.h"
#include "cluster/discovery.h"
#include "net/etcd_codec.h"

#include <string.h>

#define ANSWER_MAX (8u << 20)
#define CALL_MS 1500u

/* Which of the daemons' names stands behind the prefix in one of the answer's keys. */
static void look(const struct net_etcd_answer *a, size_t prefix, const struct cli_up_plan *plan, char *name_out, size_t cap)
{
    for (uint32_t i = 0; i < a->kv_count && !name_out[0]; i++)
        for (uint32_t k = 0; k < plan->count && !name_out[0]; k++)
            if (strlen(a->kvs[i].key) > prefix && strcmp(a->kvs[i].key + prefix, plan->daemon[k].name) == 0)
                (void)kvs_format(name_out, cap, "%s", plan->daemon[k].name);
}

static bool ask(const char *endpoint, const char *prefix, struct kvs_buf *out)
{
    struct kvs_buf body;
    char url[400];
    kvs_buf_init(&body, 4096);
    (void)kvs_format(url, sizeof url, "http://%s/v3/kv/range", endpoint);
    struct cli_http h = {.url = url, .timeout_ms = CALL_MS, .connect_ms = CALL_MS, .out = out};
    kvs_status s = net_etcd_put_range(&body, prefix, 0);
    h.body = s == KVS_OK ? kvs_buf_text(&body) : NULL;
    if (s == KVS_OK)
        s = cli_http(&h, NULL);
    kvs_buf_fini(&body);
    return s == KVS_OK && h.status == 200;
}

void cli_etcd_taken(const char *discovery, const char *cluster, const struct cli_up_plan *plan, char *name_out, size_t cap)
{
    static const char scheme[] = "etcd://";
    char list[300], prefix[200];
    struct kvs_buf b;
    struct kvs_arena arena;
    struct net_etcd_answer answer = {0};
    name_out[0] = '\0';
    if (strncmp(discovery, scheme, sizeof scheme - 1) != 0)
        return;
    (void)kvs_format(list, sizeof list, "%s", discovery + sizeof scheme - 1);
    (void)kvs_format(prefix, sizeof prefix, CLS_ETCD_MEMBERS, cluster);
    kvs_buf_init(&b, ANSWER_MAX);
    kvs_arena_init(&arena, ANSWER_MAX);
    bool answered = false;
    for (char *e = list, *next; e && !answered; e = next) {
        next = strchr(e, ',');
        if (next)
            *next++ = '\0';
        kvs_buf_clear(&b);
        answered = ask(e, prefix, &b);
    }
    if (answered && net_etcd_answer_decode(kvs_buf_text(&b), b.len, &arena, &answer, NULL) == KVS_OK)
        look(&answer, strlen(prefix), plan, name_out, cap);
    kvs_arena_fini(&arena);
    kvs_buf_fini(&b);
}
