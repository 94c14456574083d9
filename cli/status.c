/* status.c - `kvasir status`: the router's view of its cluster, as a table or as the JSON it gave.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/cluster_view.h"
#include "cli/http_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VIEW_MAX (4u << 20)

struct status_config {
    char url[256];
    bool json;
};
static const struct kvs_config_row rows[] = {
    {"status.url", "url", KVS_CFG_STRING, "127.0.0.1:8080", 0, 256, NULL, "the router's HOST:PORT",
     offsetof(struct status_config, url)},
    {"status.json", "json", KVS_CFG_BOOL, "false", 0, 0, NULL, "the whole answer as JSON",
     offsetof(struct status_config, json)},
};

kvs_status cli_cluster_view(const char *base_url, uint32_t timeout_ms, json_t **out, struct kvs_error *err)
{
    char url[320], text[256];
    (void)kvs_format(url, sizeof url, "%s/kvasir/status", base_url);
    struct kvs_buf body;
    kvs_buf_init(&body, VIEW_MAX);
    struct cli_http h = {.url = url, .timeout_ms = timeout_ms, .connect_ms = timeout_ms, .out = &body};
    kvs_status s = cli_http(&h, err);
    if (s == KVS_OK && h.status != 200) {
        cli_http_error_text(&h, &body, text, sizeof text);
        s = kvs_fail(err, KVS_PEER_PROTOCOL, "%s", text);
    }
    if (s == KVS_OK) {
        *out = json_loadb(kvs_buf_text(&body), body.len, JSON_REJECT_DUPLICATES, NULL);
        if (!json_is_object(*out)) {
            json_decref(*out);
            s = kvs_fail(err, KVS_PEER_PROTOCOL, "%s is no Kvasir router: its status is not a JSON object", base_url);
        }
    }
    kvs_buf_fini(&body);
    return s;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(o, key));
    return v ? v : "-";
}

static long long number_of(const json_t *o, const char *key)
{
    return (long long)json_integer_value(json_object_get(o, key));
}

static bool has_peer(const json_t *worker, const char *id)
{
    const json_t *peers = json_object_get(worker, "peers"), *p;
    size_t i;
    json_array_foreach(peers, i, p)
    {
        const char *transport = text_of(p, "transport");
        if (!strcmp(text_of(p, "id"), id) && strcmp(transport, "none") != 0 && strcmp(transport, "-") != 0)
            return true;
    }
    return false;
}

uint32_t cli_cluster_workers(const json_t *view, bool *linked_out)
{
    const json_t *workers = json_object_get(view, "workers"), *a, *b;
    size_t i, k;
    uint32_t ready = 0;
    bool linked = true;
    json_array_foreach(workers, i, a)
    {
        ready += !strcmp(text_of(a, "state"), "ready");
        if (strcmp(text_of(a, "role"), "decode") != 0)
            continue;
        json_array_foreach(workers, k, b)
        {
            if (!strcmp(text_of(b, "role"), "prefill") && !has_peer(a, text_of(b, "id")))
                linked = false;
        }
    }
    *linked_out = linked;
    return ready;
}

/* Pages of all groups together, by state. */
static uint64_t pages_of(const json_t *worker, const char *state)
{
    const json_t *groups = json_object_get(worker, "pages"), *g;
    uint64_t sum = 0;
    size_t i;
    json_array_foreach(groups, i, g)
    {
        sum += (uint64_t)json_integer_value(json_object_get(g, state));
    }
    return sum;
}

static void print_worker(const json_t *w)
{
    printf("%-12s %-8s %-9s %-8lld %-16s %8llu %8llu %8llu %8llu  %4lld + %-4lld ", text_of(w, "id"),
           text_of(w, "role"), text_of(w, "state"), number_of(w, "pid"), text_of(w, "epoch"),
           (unsigned long long)pages_of(w, "free"), (unsigned long long)pages_of(w, "cached"),
           (unsigned long long)pages_of(w, "held"), (unsigned long long)pages_of(w, "fenced"), number_of(w, "running"),
           number_of(w, "waiting"));
    const json_t *peers = json_object_get(w, "peers"), *p;
    size_t i;
    json_array_foreach(peers, i, p)
    {
        printf(" %s:%s", text_of(p, "id"), text_of(p, "transport"));
    }
    putchar('\n');
}

int cli_status(int argc, char **argv)
{
    struct status_config c = {0};
    static const struct cli_usage usage = {.text = "usage: kvasir status [--url HOST:PORT] [--json]"};
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    struct kvs_error err = {0};
    char base[300];
    json_t *view = NULL;
    kvs_status s = cli_base_url(c.url, base, sizeof base, &err);
    if (s == KVS_OK)
        s = cli_cluster_view(base, 5000, &view, &err);
    if (s != KVS_OK)
        return cli_failed(&err);
    if (c.json) {
        (void)json_dumpf(view, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        printf("%-12s %-8s %-9s %-8s %-16s %8s %8s %8s %8s  %-11s  links\n", "worker", "role", "state", "pid", "epoch",
               "free", "cached", "held", "fenced", "run + wait");
        const json_t *workers = json_object_get(view, "workers"), *w;
        size_t i;
        json_array_foreach(workers, i, w)
        {
            print_worker(w);
        }
        if (json_array_size(workers) == 0)
            puts("no worker has joined yet");
        else
            cli_status_tables(view);
    }
    json_decref(view);
    return 0;
}
