/* etcd_nomem_test.c - discovery by a real etcd with every allocation of ours failing in turn: creation, joining, a changed card, another member
 * that comes and leaves. What fails at once says so; what fails later is made good by itself; nobody is told what is not so, and nothing is left
 * over. (The server runs for all rounds; each round has a cluster of its own.)
 * For half a minute places are tried that are spread over all of them, the same everywhere; with KVASIR_TEST_NOMEM=all every one in turn,
 * with KVASIR_TEST_NOMEM=N the N-th alone, with N-M those. What libcurl allocates fails, too.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "discovery_fixture.h"
#include "etcd_server.h"
#include "patience.h"
#include "sys/clock.h"
#include "tests/support/nomem.h"
#include <stdio.h>
#include <stdlib.h>
#include <curl/curl.h>
#include <string.h>

enum { A, B, MEMBERS, WAIT_MS = 60000, SAMPLE_US = 30000000 };

static struct etcd_servers servers;
static struct participant member[MEMBERS];
static struct kvs_loop *loop;
static struct patience patience;

static void come(int i, const char *cluster)
{
    struct participant *p = &member[i];
    const struct cls_etcd_config config = {.url = servers.url, .cluster = cluster, .ttl_us = 2000000};
    struct msg_card c = card(i == A ? "worker-a" : "worker-b", MSG_ROLE_DECODE, 50 + (uint64_t)i);
    struct cls_events ev;
    struct kvs_error err = {0};
    memset(p, 0, sizeof *p);
    participant_events(p, &ev);
    TST_NOMEM_TWICE(cls_etcd_create(loop, &config, &ev, &p->d, &err));
    TST_NOMEM_TWICE(p->d->ops->join(p->d, &c));
}

static bool both_know_both(void)
{
    for (int i = 0; i < MEMBERS; i++) {
        if (!member[i].up || epoch_known(&member[i], "worker-a") != 50 || epoch_known(&member[i], "worker-b") != 51) {
            return false;
        }
    }
    return true;
}

static bool a_drains(void)
{
    for (uint32_t k = 0; k < member[B].seen_count; k++) {
        const struct msg_member *m = &member[B].seen[k];
        if (m->change == MSG_MEMBER_PUT && m->card.draining && strcmp(m->card.id, "worker-a") == 0) {
            return true;
        }
    }
    return false;
}

static bool b_is_gone(void)
{
    return epoch_known(&member[A], "worker-b") == 0 && epoch_known(&member[A], "worker-a") == 50;
}

static void whole(int64_t n)
{
    char cluster[32];
    struct msg_card changed = card("worker-a", MSG_ROLE_DECODE, 50);
    (void)snprintf(cluster, sizeof cluster, "round-%lld", (long long)n);
    come(A, cluster);
    come(B, cluster);
    if (!comes_true(&patience, both_know_both, WAIT_MS)) {
        fail_msg("allocation %lld: they do not know each other", (long long)n);
    }
    changed.draining = true;
    TST_NOMEM_TWICE(member[A].d->ops->join(member[A].d, &changed));
    if (!comes_true(&patience, a_drains, WAIT_MS)) {
        fail_msg("allocation %lld: a changed card is not told", (long long)n);
    }
    member[B].d->ops->leave(member[B].d);
    if (!comes_true(&patience, b_is_gone, WAIT_MS)) {
        fail_msg("allocation %lld: one that left is still there", (long long)n);
    }
    for (int i = MEMBERS; i-- > 0;) {
        struct cls_etcd_stats stats;
        cls_etcd_stats(member[i].d, &stats);
        if (stats.silent_watches != 0) { /* which would have been made good, but none may become so */
            fail_msg("allocation %lld: a watch fell silent", (long long)n);
        }
        member[i].d->ops->destroy(member[i].d);
    }
}

/* One round; false: it needs fewer allocations than that. */
static bool try_place(int64_t n, uint64_t *took_us)
{
    int64_t live = tst_nomem_live();
    uint64_t begin = kvs_now_us();
    assert_int_equal(kvs_loop_create(&loop), KVS_OK);
    patience_open(&patience, loop);
    tst_nomem_arm(n);
    whole(n);
    bool fired = tst_nomem_disarm();
    patience_close(&patience);
    kvs_loop_destroy(loop);
    if (tst_nomem_live() != live) {
        fail_msg("allocation %lld: %lld are left over", (long long)n, (long long)(tst_nomem_live() - live));
    }
    *took_us = kvs_now_us() - begin;
    if (*took_us > 5000000) {
        printf("allocation %lld took %.1f s to be made good\n", (long long)n, (double)*took_us * 1e-6);
    }
    return fired;
}

static int64_t try_some(int64_t places)
{
    uint64_t us, end_us = kvs_now_us() + SAMPLE_US;
    int64_t tried = 0, n = 0;
    int64_t step = places * 5 / 13 + 1; /* far, and then into the gaps */
    while (kvs_now_us() < end_us && tried < places) {
        (void)try_place(n, &us);
        n = (n + step) % places;
        tried++;
    }
    return tried;
}

static int64_t try_range(const char *text, int64_t places)
{
    char *end = NULL;
    uint64_t us;
    bool all = strcmp(text, "all") == 0;
    int64_t from = all ? 0 : strtoll(text, &end, 10), n = from, to = places;
    if (!all) {
        to = *end == '-' ? strtoll(end + 1, NULL, 10) : from;
    }
    for (bool fired = true; n <= to || (all && fired); n++) { /* rounds differ: some end before that place */
        fired = try_place(n, &us);
    }
    return n - from;
}

static void test_etcd(void **state)
{
    const char *which = getenv("KVASIR_TEST_NOMEM");
    uint64_t us, begin = kvs_now_us();
    (void)state;
    assert_false(try_place(INT64_MAX, &us));
    int64_t places = tst_nomem_seen();
    int64_t tried = which != NULL ? try_range(which, places) : try_some(places);
    printf("%lld of %lld places tried in %.0f s\n", (long long)tried, (long long)places, (double)(kvs_now_us() - begin) * 1e-6);
    assert_true(places > 100 && tried > 0);
}

static void *hook_calloc(size_t n, size_t size)
{
    void *p = tst_nomem_hook_malloc(n * size);
    return p != NULL ? memset(p, 0, n * size) : NULL;
}

static char *hook_strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    char *p = tst_nomem_hook_malloc(n);
    return p != NULL ? memcpy(p, text, n) : NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_etcd)};
    if (!etcd_is_there()) {
        printf("skipped: the program etcd is not installed\n");
        return 77;
    }
    if (curl_global_init_mem(CURL_GLOBAL_DEFAULT, tst_nomem_hook_malloc, tst_nomem_hook_free, tst_nomem_hook_realloc, hook_strdup,
                             hook_calloc) != CURLE_OK) {
        return 1;
    }
    etcd_start(&servers, 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    etcd_stop(&servers);
    return failed;
}
