/* pool_test.c - the pool against a naive model (one small struct a page, everything counted afresh) under random
 * operations; what must assert is tried in a child process. KVASIR_TEST_SEED takes another seed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "kvcache/pool.h"
#include "tests/unit/kvcache/failing_alloc.h"

enum { PAGES = 37 };

struct model_page {
    uint32_t holders;
    bool known, fenced;
};

static uint64_t seed(void)
{
    const char *text = getenv("KVASIR_TEST_SEED");
    uint64_t s = text != NULL ? strtoull(text, NULL, 10) : 20261130u;
    print_message("KVASIR_TEST_SEED=%llu\n", (unsigned long long)s);
    return s;
}

static void compare(const struct kvc_pool *p, const struct model_page *m)
{
    struct kvc_pool_counts want = {.total = PAGES}, have = kvc_pool_counts(p);
    for (uint32_t i = 0; i < PAGES; i++) {
        want.held += m[i].holders > 0;
        want.fenced += m[i].holders == 0 && m[i].fenced;
        want.cached += m[i].holders == 0 && m[i].known;
        want.free += m[i].holders == 0 && !m[i].fenced && !m[i].known;
        assert_int_equal(kvc_pool_holders(p, i), m[i].holders);
        assert_int_equal(kvc_pool_writable(p, i), m[i].holders == 1 && !m[i].known);
    }
    assert_memory_equal(&want, &have, sizeof want);
}

static void acquire(struct kvc_pool *p, struct model_page *m, uint32_t count)
{
    uint32_t pages[PAGES + 8], free_pages = 0;
    memset(pages, 0xee, sizeof pages);
    for (uint32_t i = 0; i < PAGES; i++)
        free_pages += m[i].holders == 0 && !m[i].fenced && !m[i].known;
    kvs_status s = kvc_pool_acquire(p, count, pages);
    assert_int_equal(s, count <= free_pages ? KVS_OK : KVS_BUSY_PAGES);
    for (uint32_t i = 0; i < count; i++) {
        if (s != KVS_OK) {
            assert_int_equal(pages[i], 0xeeeeeeee);
            continue;
        }
        struct model_page *e = &m[pages[i]];
        assert_true(pages[i] < PAGES && e->holders == 0 && !e->fenced && !e->known);
        e->holders = 1;
    }
}

static void step(struct kvc_pool *p, struct model_page *m, struct kvs_rng *r)
{
    uint32_t i = (uint32_t)kvs_rng_below(r, PAGES);
    switch (kvs_rng_below(r, 8)) {
    case 0: acquire(p, m, (uint32_t)kvs_rng_below(r, 6)); break;
    case 1: acquire(p, m, (uint32_t)kvs_rng_below(r, PAGES + 8)); break;
    case 2:
        if (m[i].holders > 0 || m[i].known)
            kvc_pool_share(p, i), m[i].holders++;
        break;
    case 3:
        if (m[i].holders == 1 && !m[i].known)
            kvc_pool_fence(p, i), m[i].holders = 0, m[i].fenced = true;
        break;
    case 4:
        if (m[i].fenced)
            kvc_pool_unfence(p, i), m[i].fenced = false;
        break;
    case 5:
        if (m[i].holders > 0 && !m[i].known)
            kvc_pool_mark_cached(p, i), m[i].known = true;
        break;
    case 6:
        if (m[i].known)
            kvc_pool_unmark_cached(p, i), m[i].known = false;
        break;
    default:
        if (m[i].holders > 0)
            kvc_pool_release(p, i), m[i].holders--;
        break;
    }
}

static void test_random_operations_equal_the_model(void **state)
{
    (void)state;
    struct kvs_rng r = {seed()};
    struct kvc_pool *p;
    struct model_page m[PAGES] = {{0}};
    assert_int_equal(kvc_pool_create(PAGES, &p), KVS_OK);
    for (int i = 0; i < 50000; i++) {
        step(p, m, &r);
        compare(p, m);
    }
    kvc_pool_destroy(p);
}

static void test_page_is_reused_after_last_release(void **state)
{
    (void)state;
    struct kvc_pool *p;
    uint32_t a, b;
    assert_int_equal(kvc_pool_create(1, &p), KVS_OK);
    assert_int_equal(kvc_pool_acquire(p, 1, &a), KVS_OK);
    kvc_pool_share(p, a);
    kvc_pool_release(p, a);
    assert_int_equal(kvc_pool_acquire(p, 1, &b), KVS_BUSY_PAGES);
    kvc_pool_release(p, a);
    assert_int_equal(kvc_pool_acquire(p, 1, &b), KVS_OK);
    assert_int_equal(b, a);
    kvc_pool_destroy(p);
    kvc_pool_destroy(NULL);
    assert_int_equal(kvc_pool_create(0, &p), KVS_OK);
    assert_int_equal(kvc_pool_acquire(p, 1, &b), KVS_BUSY_PAGES);
    kvc_pool_destroy(p);
}

/* In a child: page 0 is held by one, page 1 is known and cached, page 2 is fenced, page 3 is free. */
static void misuse(int what)
{
    struct kvc_pool *p;
    uint32_t pages[3];
    if (kvc_pool_create(4, &p) != KVS_OK || kvc_pool_acquire(p, 3, pages) != KVS_OK)
        _exit(9);
    kvc_pool_mark_cached(p, 1);
    kvc_pool_release(p, 1);
    kvc_pool_fence(p, 2);
    switch (what) {
    case 0: kvc_pool_release(p, 3); break;
    case 1: kvc_pool_release(p, 1); break;
    case 2: kvc_pool_release(p, 2); break;
    case 3: kvc_pool_share(p, 3); break;
    case 4: kvc_pool_share(p, 2); break;
    case 5: kvc_pool_unfence(p, 0); break;
    case 6: kvc_pool_fence(p, 3); break;
    case 7: kvc_pool_mark_cached(p, 1); break;
    case 8: kvc_pool_mark_cached(p, 3); break;
    case 9: kvc_pool_unmark_cached(p, 0); break;
    case 10: kvc_pool_release(p, 4); break;
    case 11: kvc_pool_release(p, 0), kvc_pool_release(p, 0); break;
    default: break; /* 12: nothing wrong */
    }
    _exit(0);
}

static void test_misuse_asserts(void **state)
{
    (void)state;
    for (int what = 0; what <= 12; what++) {
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            int null = open("/dev/null", O_WRONLY);
            dup2(null, 2);
            signal(SIGABRT, SIG_DFL);
            misuse(what);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (what == 12)
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        else
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

static void test_create_survives_failing_allocations(void **state)
{
    (void)state;
    int n = 0;
    for (;; n++) {
        struct kvc_pool *p = NULL;
        failing_alloc_arm(n);
        kvs_status s = kvc_pool_create(8, &p);
        failing_alloc_disarm();
        if (s == KVS_OK) {
            kvc_pool_destroy(p);
            break;
        }
        assert_int_equal(s, KVS_SELF_NOMEM);
        assert_null(p);
    }
    assert_int_equal(n, 3); /* the pool, its pages, its stack */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations_equal_the_model),
        cmocka_unit_test(test_page_is_reused_after_last_release),
        cmocka_unit_test(test_misuse_asserts),
        cmocka_unit_test(test_create_survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
