/* up_plan_test.c - which daemons `kvasir up` starts, and with what.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/up_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_up_paths paths = {.bin_router = "/b/kvasir-router",
                                          .bin_prefill = "/b/kvasir-prefill-worker",
                                          .bin_decode = "/b/kvasir-decode-worker",
                                          .model = "/m.gguf",
                                          .model_name = "m",
                                          .listen = "127.0.0.1:8080",
                                          .socket_dir = "/run/k"};

static void load(struct cli_up_config *c, int argc, char **argv)
{
    int rest, code;
    static const struct cli_usage usage = {.text = ""};
    memset(c, 0, sizeof *c);
    code = cli_flags(cli_up_rows, cli_up_row_count, c, argc, argv, &usage, &rest);
    assert_int_equal(code, CLI_GO_ON);
}

static bool has(const struct cli_daemon *d, const char *word)
{
    for (uint32_t i = 1; i < d->argc; i++)
        if (!strcmp(d->argv[i], word))
            return true;
    return false;
}

/* The value after a flag, NULL when the flag is not there. */
static const char *value(const struct cli_daemon *d, const char *flag)
{
    for (uint32_t i = 1; i + 1 < d->argc; i++)
        if (!strcmp(d->argv[i], flag))
            return d->argv[i + 1];
    return NULL;
}

static void test_discovery_by_etcd(void **state)
{
    (void)state;
    char name[] = "up", own[] = "--etcd", given[] = "--discovery=etcd://h:1,i:2", cluster[] = "--cluster=c7",
         odd[] = "--discovery=http://h:1";
    struct cli_up_config c;
    struct cli_up_paths with = paths;
    struct kvs_error err = {0};
    struct cli_up_plan *p = calloc(1, sizeof *p);
    with.run_dir = "/var/k";
    with.etcd_client = "127.0.0.1:7001";
    with.etcd_peer = "127.0.0.1:7002";
    load(&c, 3, (char *[]){name, own, cluster, NULL});
    assert_int_equal(cli_up_plan(&c, &with, p, NULL), KVS_OK);
    assert_int_equal(p->count, 4);
    assert_int_equal(p->workers, 2);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(value(&p->daemon[i], "--discovery"), "etcd://127.0.0.1:7001");
        assert_string_equal(value(&p->daemon[i], "--cluster"), "c7");
    }
    assert_string_equal(p->daemon[3].name, "etcd");
    assert_string_equal(value(&p->daemon[3], "--data-dir"), "/var/k/etcd-data");
    assert_string_equal(value(&p->daemon[3], "--listen-client-urls"), "http://127.0.0.1:7001");
    assert_string_equal(value(&p->daemon[3], "--initial-cluster"), "kvasir=http://127.0.0.1:7002");
    load(&c, 2, (char *[]){name, given, NULL});
    assert_int_equal(cli_up_plan(&c, &with, p, NULL), KVS_OK);
    assert_int_equal(p->count, 3);
    assert_string_equal(value(&p->daemon[0], "--discovery"), "etcd://h:1,i:2");
    assert_string_equal(value(&p->daemon[2], "--discovery"), "etcd://h:1,i:2");
    load(&c, 3, (char *[]){name, given, own, NULL});
    assert_int_equal(cli_up_plan(&c, &with, p, &err), KVS_SELF_CONFIG);
    load(&c, 2, (char *[]){name, odd, NULL});
    assert_int_equal(cli_up_plan(&c, &with, p, &err), KVS_SELF_CONFIG);
    free(p);
}

/* What workers are given as --discovery, the router's control URL, means the same here: the router listens there and keeps the registry. */
static void test_discovery_by_the_control_url(void **state)
{
    (void)state;
    char name[] = "up", url[] = "--discovery=tcp://127.0.0.1:7", same[] = "--control=tcp://127.0.0.1:7", other[] = "--control=tcp://127.0.0.1:8",
         etcd[] = "--etcd";
    char *const more[] = {NULL, same, other, etcd};
    struct cli_up_config c;
    struct kvs_error err = {0};
    struct cli_up_plan *p = calloc(1, sizeof *p);
    for (int i = 0; i < 4; i++) {
        load(&c, more[i] ? 3 : 2, (char *[]){name, url, more[i], NULL});
        assert_int_equal(cli_up_plan(&c, &paths, p, &err), i < 2 ? KVS_OK : KVS_SELF_CONFIG);
        if (i >= 2)
            continue;
        assert_string_equal(value(&p->daemon[0], "--control"), "tcp://127.0.0.1:7");
        assert_string_equal(p->daemon[0].socket, "");
        assert_null(value(&p->daemon[0], "--discovery"));
        assert_string_equal(value(&p->daemon[2], "--discovery"), "tcp://127.0.0.1:7");
        assert_false(p->routers_elsewhere);
    }
    free(p);
}

/* Requests wait for what is started again, and for nobody when nothing is. */
static void test_the_router_knows_whether_workers_are_started_again(void **state)
{
    (void)state;
    char name[] = "up", no[] = "--no-restart";
    struct cli_up_config c;
    struct cli_up_plan *p = calloc(1, sizeof *p);
    load(&c, 1, (char *[]){name, NULL});
    assert_int_equal(cli_up_plan(&c, &paths, p, NULL), KVS_OK);
    assert_string_equal(value(&p->daemon[0], "--restart-wait"), "180");
    load(&c, 2, (char *[]){name, no, NULL});
    assert_int_equal(cli_up_plan(&c, &paths, p, NULL), KVS_OK);
    assert_null(value(&p->daemon[0], "--restart-wait"));
    free(p);
}

static void test_defaults_are_one_of_each(void **state)
{
    (void)state;
    char name[] = "up", *argv[] = {name, NULL};
    struct cli_up_config c;
    load(&c, 1, argv);
    struct cli_up_plan *p = calloc(1, sizeof *p);
    assert_int_equal(cli_up_plan(&c, &paths, p, NULL), KVS_OK);
    assert_int_equal(p->count, 3);
    assert_string_equal(p->daemon[0].name, "router");
    assert_string_equal(p->daemon[1].name, "prefill-0");
    assert_string_equal(p->daemon[2].name, "decode-0");
    assert_string_equal(p->daemon[0].argv[0], "/b/kvasir-router");
    assert_string_equal(value(&p->daemon[0], "--control"), "ipc:///run/k/router.sock");
    assert_string_equal(value(&p->daemon[2], "--discovery"), "ipc:///run/k/router.sock");
    assert_string_equal(value(&p->daemon[2], "--control"), "ipc:///run/k/decode-0.sock");
    assert_string_equal(value(&p->daemon[2], "--kv-type"), "f16");
    assert_string_equal(value(&p->daemon[1], "--transport"), "auto");
    assert_string_equal(value(&p->daemon[0], "--deadline"), "600.000000");
    assert_null(value(&p->daemon[1], "--chunk-tokens"));
    assert_null(value(&p->daemon[1], "--kv-memory"));
    assert_false(has(&p->daemon[1], "--no-prefix-cache"));
    assert_null(p->daemon[2].argv[p->daemon[2].argc]);
    free(p);
}

static void test_flags_reach_the_daemons(void **state)
{
    (void)state;
    char args[][24] = {"up",
                       "--prefill",
                       "2",
                       "--decode=3",
                       "--transport",
                       "tcp",
                       "--kv-type",
                       "f32",
                       "--chunk-tokens",
                       "7",
                       "--block-tokens",
                       "16",
                       "--group-layers",
                       "1",
                       "--context",
                       "512",
                       "--placement",
                       "remote",
                       "--threads",
                       "2",
                       "--kv-memory",
                       "64M",
                       "--no-prefix-cache"};
    char *argv[sizeof args / sizeof args[0] + 1] = {NULL};
    int argc = (int)(sizeof args / sizeof args[0]);
    for (int i = 0; i < argc; i++)
        argv[i] = args[i];
    struct cli_up_config c;
    load(&c, argc, argv);
    struct cli_up_plan *p = calloc(1, sizeof *p);
    assert_int_equal(cli_up_plan(&c, &paths, p, NULL), KVS_OK);
    assert_int_equal(p->count, 6);
    const struct cli_daemon *d = &p->daemon[5];
    assert_string_equal(d->name, "decode-2");
    assert_string_equal(value(d, "--transport"), "tcp");
    assert_string_equal(value(d, "--kv-type"), "f32");
    assert_string_equal(value(d, "--chunk-tokens"), "7");
    assert_string_equal(value(d, "--block-tokens"), "16");
    assert_string_equal(value(d, "--group-layers"), "1");
    assert_string_equal(value(d, "--context"), "512");
    assert_string_equal(value(d, "--threads"), "2");
    assert_string_equal(value(d, "--kv-memory"), "64M");
    assert_string_equal(value(&p->daemon[0], "--placement"), "remote");
    assert_true(has(d, "--no-prefix-cache"));
    assert_true(has(&p->daemon[1], "--no-prefix-cache"));
    assert_false(has(&p->daemon[0], "--no-prefix-cache"));
    free(p);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    (void)state;
    char name[] = "up", *argv[] = {name, NULL};
    struct cli_up_config c;
    load(&c, 1, argv);
    struct cli_up_plan *p = calloc(1, sizeof *p);
    struct kvs_error err = {0};
    char dir[CLI_UP_SOCKET_DIR_MAX + 2], model[5000];
    memset(dir, 'd', sizeof dir - 1);
    dir[sizeof dir - 1] = '\0';
    struct cli_up_paths bad = paths;
    bad.socket_dir = dir;
    assert_int_equal(cli_up_plan(&c, &bad, p, &err), KVS_SELF_CONFIG);
    memset(model, 'm', sizeof model - 1);
    model[sizeof model - 1] = '\0';
    bad = paths;
    bad.model = model;
    assert_int_equal(cli_up_plan(&c, &bad, p, &err), KVS_SELF_CONFIG);
    c.decode = 0;
    assert_int_equal(cli_up_plan(&c, &paths, p, &err), KVS_SELF_CONFIG);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_discovery_by_etcd),
        cmocka_unit_test(test_discovery_by_the_control_url),
        cmocka_unit_test(test_the_router_knows_whether_workers_are_started_again),
        cmocka_unit_test(test_defaults_are_one_of_each),
        cmocka_unit_test(test_flags_reach_the_daemons),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
