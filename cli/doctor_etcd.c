/* doctor_etcd.c - `kvasir doctor --discovery etcd://...`: each endpoint is asked for its version, its alarms and its leader, and how long a read
 * takes; then the members of the cluster are counted. The same gateway (JSON over HTTP) that the daemons use.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/doctor.h"
#include "cli/http_client.h"
#include "cluster/discovery.h"
#include "net/etcd_codec.h"
#include "sys/clock.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MAX (8u << 20)
#define CALL_MS 2000u
#define READS 5
#define SLOW_US 100000u

struct etcd {
    const char *endpoint;
    struct kvs_buf *answer;
    char token[1025]; /* "": no authentication */
};

static kvs_status ask(const struct etcd *e, const char *path, const char *body, long *status_out, struct kvs_error *err)
{
    char url[400];
    (void)kvs_format(url, sizeof url, "http://%s%s", e->endpoint, path);
    kvs_buf_clear(e->answer);
    struct cli_http h = {.url = url, .body = body, .timeout_ms = CALL_MS, .connect_ms = CALL_MS, .out = e->answer, .authorization = e->token};
    kvs_status s = cli_http(&h, err);
    *status_out = h.status;
    return s;
}

static bool check_version(const struct etcd *e)
{
    const char *endpoint = e->endpoint;
    struct kvs_buf *b = e->answer;
    struct kvs_error err = {0};
    long status = 0;
    char text[400];
    kvs_status s = ask(e, "/version", NULL, &status, &err);
    json_t *o = s == KVS_OK && status == 200 ? json_loadb(kvs_buf_text(b), b->len, 0, NULL) : NULL;
    const char *version = json_string_value(json_object_get(o, "etcdserver"));
    if (!version) {
        (void)kvs_format(text, sizeof text, "%s: %s", endpoint,
                         s == KVS_PEER_REFUSED ? "nobody answers there" : s != KVS_OK ? err.text : "what answers there is no etcd");
        cli_doctor_say(CLI_BAD, "etcd", text, "start it, or correct --discovery");
        json_decref(o);
        return false;
    }
    char *end = NULL;
    long major = strtol(version, &end, 10), minor = *end == '.' ? strtol(end + 1, NULL, 10) : 0;
    bool good = major > 3 || (major == 3 && minor >= 4);
    (void)kvs_format(text, sizeof text, "%s answers, version %.40s", endpoint, version);
    cli_doctor_say(good ? CLI_GOOD : CLI_BAD, "etcd", text, good ? "" : "etcd 3.4 or later is needed");
    json_decref(o);
    return good;
}

static void check_status(const struct etcd *e)
{
    const char *endpoint = e->endpoint;
    struct kvs_buf *b = e->answer;
    struct kvs_error err = {0};
    long status = 0;
    char text[400];
    if (ask(e, "/v3/maintenance/status", "{}", &status, &err) != KVS_OK || status != 200)
        return; /* the reads say what is wrong */
    json_t *o = json_loadb(kvs_buf_text(b), b->len, 0, NULL);
    const char *leader = json_string_value(json_object_get(o, "leader")), *size = json_string_value(json_object_get(o, "dbSize"));
    if (!leader || !strcmp(leader, "0")) {
        (void)kvs_format(text, sizeof text, "%s has no leader", endpoint);
        cli_doctor_say(CLI_BAD, "etcd", text, "a majority of its nodes must be up and reach each other");
    }
    if (size && strtoull(size, NULL, 10) > (1ull << 30)) {
        (void)kvs_format(text, sizeof text, "%s holds %.1f GB", endpoint, (double)strtoull(size, NULL, 10) / 1e9);
        cli_doctor_say(CLI_WARNING, "etcd", text, "set --auto-compaction-mode periodic --auto-compaction-retention 10m, and defragment");
    }
    json_decref(o);
}

static void check_alarms(const struct etcd *e)
{
    const char *endpoint = e->endpoint;
    struct kvs_buf *b = e->answer;
    struct kvs_error err = {0};
    long status = 0;
    char text[400];
    const json_t *a;
    size_t i;
    if (ask(e, "/v3/maintenance/alarm", "{\"action\":\"GET\"}", &status, &err) != KVS_OK || status != 200)
        return;
    json_t *o = json_loadb(kvs_buf_text(b), b->len, 0, NULL);
    json_array_foreach(json_object_get(o, "alarms"), i, a)
    {
        const char *what = json_string_value(json_object_get(a, "alarm"));
        (void)kvs_format(text, sizeof text, "%s: alarm %.40s", endpoint, what ? what : "of an unknown kind");
        cli_doctor_say(CLI_BAD, "etcd", text, what && !strcmp(what, "NOSPACE") ? "compact and defragment it, then etcdctl alarm disarm" : "see etcd's log");
    }
    json_decref(o);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Reads the cluster's members, as daemons do. */
static void check_reads(const struct etcd *e, const char *cluster)
{
    const char *endpoint = e->endpoint;
    struct kvs_buf *b = e->answer;
    struct kvs_error err = {0};
    struct kvs_buf body;
    struct kvs_arena arena;
    struct net_etcd_answer answer = {0};
    char prefix[200], text[500];
    uint64_t us[READS];
    long status = 200;
    kvs_buf_init(&body, 4096);
    kvs_arena_init(&arena, ANSWER_MAX);
    (void)kvs_format(prefix, sizeof prefix, CLS_ETCD_MEMBERS, cluster);
    kvs_status s = net_etcd_put_range(&body, prefix, 0);
    for (int i = 0; i < READS && s == KVS_OK && status == 200; i++) {
        uint64_t begin = kvs_now_us();
        s = ask(e, "/v3/kv/range", kvs_buf_text(&body), &status, &err);
        us[i] = kvs_now_us() - begin;
    }
    if (s == KVS_OK && status == 200)
        s = net_etcd_answer_decode(kvs_buf_text(b), b->len, &arena, &answer, &err);
    if (s == KVS_OK && status != 200) {
        char why[200];
        (void)net_etcd_error_decode(kvs_buf_text(b), b->len, why, sizeof why);
        (void)kvs_format(text, sizeof text, "%s refuses a read: %s", endpoint, why);
        cli_doctor_say(CLI_WARNING, "etcd", text, "daemons and this check take KVASIR_ETCD_USER and KVASIR_ETCD_PASSWORD; that user must read and write /kvasir/v1/CLUSTER/");
    } else if (s != KVS_OK) {
        (void)kvs_format(text, sizeof text, "%s: a read failed: %s", endpoint, err.text);
        cli_doctor_say(CLI_BAD, "etcd", text, "without a majority it answers no reads");
    } else {
        qsort(us, READS, sizeof us[0], by_size);
        (void)kvs_format(text, sizeof text, "%s: a read takes %.1f ms, at most %.1f; %u members of cluster \"%s\"", endpoint, (double)us[READS / 2] / 1e3,
                         (double)us[READS - 1] / 1e3, answer.kv_count, cluster);
        bool slow = us[READS / 2] > SLOW_US;
        cli_doctor_say(slow ? CLI_WARNING : CLI_GOOD, "etcd", text, slow ? "leases need an etcd that answers in well under 0.1 s: look at its disk" : "");
    }
    kvs_arena_fini(&arena);
    kvs_buf_fini(&body);
}

/* As the daemons do: a token for all that follows. False: this user is refused. */
static bool login(struct etcd *e, const char *user, const char *password)
{
    struct kvs_error err = {0};
    struct kvs_buf body;
    struct kvs_arena arena;
    struct net_etcd_answer answer = {0};
    char text[500], why[200] = "";
    long status = 0;
    kvs_buf_init(&body, 4096);
    kvs_arena_init(&arena, 65536);
    kvs_status s = net_etcd_put_login(&body, user, password);
    if (s == KVS_OK)
        s = ask(e, "/v3/auth/authenticate", kvs_buf_text(&body), &status, &err);
    if (s == KVS_OK && status == 200)
        s = net_etcd_answer_decode(kvs_buf_text(e->answer), e->answer->len, &arena, &answer, &err);
    size_t n = s == KVS_OK && status == 200 ? strlen(answer.token) : 0;
    bool good = n > 0 && n < sizeof e->token && !strpbrk(answer.token, "\r\n");
    if (good) {
        memcpy(e->token, answer.token, n + 1);
    } else {
        if (s == KVS_OK && status != 200)
            (void)net_etcd_error_decode(kvs_buf_text(e->answer), e->answer->len, why, sizeof why);
        (void)kvs_format(text, sizeof text, "%s refuses user \"%.64s\": %s", e->endpoint, user, s != KVS_OK ? err.text : why[0] ? why : "no token came");
        cli_doctor_say(CLI_BAD, "etcd", text, "correct KVASIR_ETCD_USER and KVASIR_ETCD_PASSWORD");
    }
    kvs_arena_fini(&arena);
    kvs_buf_fini(&body);
    return good;
}

void cli_doctor_etcd(const char *discovery, const char *cluster, const char *user, const char *password)
{
    static const char scheme[] = "etcd://";
    char list[300];
    struct kvs_buf b;
    if (strncmp(discovery, scheme, sizeof scheme - 1) != 0) {
        cli_doctor_say(CLI_BAD, "etcd", "--discovery is no etcd address", "use etcd://HOST:PORT[,HOST:PORT]");
        return;
    }
    kvs_buf_init(&b, ANSWER_MAX);
    (void)kvs_format(list, sizeof list, "%s", discovery + sizeof scheme - 1);
    for (char *e = list, *next; e; e = next) {
        next = strchr(e, ',');
        if (next)
            *next++ = 0;
        struct etcd at = {.endpoint = e, .answer = &b};
        if (!check_version(&at) || (user[0] && !login(&at, user, password)))
            continue;
        check_status(&at);
        check_alarms(&at);
        check_reads(&at, cluster);
    }
    kvs_buf_fini(&b);
}
