/* doctor_cluster.c - `kvasir doctor --url`: what is wrong in a cluster that runs, as its router sees it. Cards are compared field by field within
 * a model: workers that differ are never paired and share no KV, which looks like a cluster that is slow for no reason.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/cluster_view.h"
#include "cli/doctor.h"
#include "cli/http_client.h"

#include <stdio.h>
#include <string.h>

static const char *text_of(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(o, key));
    return v ? v : "";
}

/* A field as text, whatever it is. */
static void field_text(const json_t *o, const char *key, char *out, size_t cap)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_string(v))
        (void)kvs_format(out, cap, "%s", json_string_value(v));
    else
        (void)kvs_format(out, cap, "%lld", (long long)json_integer_value(v));
}

static bool compare_cards(const json_t *a, const json_t *b)
{
    static const char *const fields[] = {"fingerprint", "numerics", "kv_types", "rope", "context", "block_tokens", "layout"};
    char left[600], right[600], text[1500];
    bool same = true;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        field_text(a, fields[i], left, sizeof left);
        field_text(b, fields[i], right, sizeof right);
        if (!strcmp(left, right))
            continue;
        same = false;
        (void)kvs_format(text, sizeof text, "%s and %s serve %s with another %s: \"%s\" and \"%s\"", text_of(a, "id"), text_of(b, "id"),
                         text_of(a, "model"), fields[i], left, right);
        cli_doctor_say(CLI_WARNING, "cards", text, "such workers are never paired and share no KV; start them with the same settings, or under another --model-name");
    }
    return same;
}

static void check_cards(const json_t *view)
{
    const json_t *workers = json_object_get(view, "workers"), *misfits = json_object_get(view, "misfits"), *a, *b;
    char text[600], line[700];
    size_t i, k;
    bool same = json_array_size(misfits) == 0;
    json_array_foreach(misfits, i, a)
    {
        cli_misfit_text(a, text, sizeof text);
        (void)kvs_format(line, sizeof line, "came and did not fit: %s", text);
        cli_doctor_say(CLI_WARNING, "cards", line, "start it with the settings of the others, or under another --model-name");
    }
    json_array_foreach(workers, i, a)
    {
        size_t first = i; /* each one is held against the first of its model */
        json_array_foreach(workers, k, b)
        {
            if (k < first && !strcmp(text_of(a, "model"), text_of(b, "model")))
                first = k;
        }
        if (first != i)
            same = compare_cards(json_array_get(workers, first), a) && same;
    }
    if (same && json_array_size(workers) > 1)
        cli_doctor_say(CLI_GOOD, "cards", "workers of one model agree in every field", "");
}

static void check_worker(const json_t *w)
{
    const char *state = text_of(w, "state");
    long long age = (long long)json_integer_value(json_object_get(w, "load_age_ms"));
    char text[400];
    if (!strcmp(state, "refused")) {
        (void)kvs_format(text, sizeof text, "%s is refused: %s", text_of(w, "id"), text_of(w, "why"));
        cli_doctor_say(CLI_BAD, "worker", text, "");
    } else if (!strcmp(state, "suspect") || !strcmp(state, "joining") || !strcmp(state, "draining")) {
        (void)kvs_format(text, sizeof text, "%s is %s", text_of(w, "id"), state);
        cli_doctor_say(CLI_WARNING, "worker", text, !strcmp(state, "suspect") ? "look at its log and at the network" : "");
    } else if (age > 2000) {
        (void)kvs_format(text, sizeof text, "%s has not reported its load for %.1f s", text_of(w, "id"), (double)age / 1000);
        cli_doctor_say(CLI_WARNING, "worker", text, "look at its log: its loop is busy or stands still");
    }
}

static const char *transport_between(const json_t *a, const json_t *b)
{
    const json_t *p;
    size_t i;
    json_array_foreach(json_object_get(a, "peers"), i, p)
    {
        if (!strcmp(text_of(p, "id"), text_of(b, "id")))
            return text_of(p, "transport");
    }
    return "";
}

static size_t host_length(const char *url)
{
    const char *host = strstr(url, "://"), *port = strrchr(url, ':');
    return host && port > host ? (size_t)(port - url) : strlen(url);
}

static bool same_host(const json_t *a, const json_t *b)
{
    const char *x = text_of(a, "http_url"), *y = text_of(b, "http_url");
    return host_length(x) == host_length(y) && strncmp(x, y, host_length(x)) == 0;
}

static void check_links(const json_t *workers)
{
    const json_t *d, *p;
    size_t i, k, good = 0, between = 0;
    char text[300];
    json_array_foreach(workers, i, d)
    {
        json_array_foreach(workers, k, p)
        {
            if (strcmp(text_of(d, "role"), "decode") != 0 || strcmp(text_of(p, "role"), "prefill") != 0 || strcmp(text_of(d, "model"), text_of(p, "model")) != 0)
                continue;
            const char *by = transport_between(d, p)[0] ? transport_between(d, p) : transport_between(p, d);
            if (!by[0] || !strcmp(by, "none")) {
                (void)kvs_format(text, sizeof text, "%s and %s are not linked: no KV goes between them", text_of(p, "id"), text_of(d, "id"));
                cli_doctor_say(CLI_WARNING, "links", text, "their logs say why; on several hosts set UCX_NET_DEVICES and --advertise");
            } else if (!strcmp(by, "tcp") && same_host(d, p)) {
                (void)kvs_format(text, sizeof text, "%s and %s are on one host, and KV goes by tcp", text_of(p, "id"), text_of(d, "id"));
                cli_doctor_say(CLI_WARNING, "links", text, "they must run under one user and in one pid namespace, and be allowed process_vm_readv");
            } else {
                good++;
                between += !same_host(d, p);
            }
        }
    }
    if (good) {
        (void)kvs_format(text, sizeof text, "%zu pairs of prefill and decode workers", good);
        cli_doctor_say(CLI_GOOD, "links", text, "");
    }
    if (between) {
        (void)kvs_format(text, sizeof text, "KV goes between hosts (%zu pairs): it is not encrypted, and whoever reaches UCX's TCP ports can end a worker",
                         between);
        cli_doctor_say(CLI_GOOD, "links", text, "keep the network of UCX_NET_DEVICES private");
    }
}

void cli_doctor_cluster(const char *url)
{
    struct kvs_error err = {0};
    char base[300], text[300];
    json_t *view = NULL;
    const json_t *w;
    size_t i, decode = 0;
    kvs_status s = cli_base_url(url, base, sizeof base, &err);
    if (s == KVS_OK)
        s = cli_cluster_view(base, 5000, &view, &err);
    if (s != KVS_OK) {
        cli_doctor_say(CLI_BAD, "router", err.text, "");
        return;
    }
    const json_t *workers = json_object_get(view, "workers");
    json_array_foreach(workers, i, w)
    {
        check_worker(w);
        decode += !strcmp(text_of(w, "state"), "ready") && strcmp(text_of(w, "role"), "prefill") != 0;
    }
    (void)kvs_format(text, sizeof text, "%s answers; %zu workers, %zu of them ready to decode", base, json_array_size(workers), decode);
    cli_doctor_say(decode ? CLI_GOOD : CLI_BAD, "router", text, decode ? "" : "requests are refused until a decode worker has joined");
    check_cards(view);
    check_links(workers);
    json_decref(view);
}
