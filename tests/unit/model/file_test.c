/* file_test.c - opening a model file: what is refused, and that a file cut short under the mapping is an error, not a crash.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/card.h"
#include "sys/thread.h"
#include "tests/support/gguf_writer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/kvasir-file-test-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void refused(const char *path, const char *word)
{
    struct mdl_file f = {0};
    struct kvs_error err = {0};
    assert_int_equal(mdl_file_open(path, &f, &err), KVS_SELF_MODEL);
    if (strstr(err.text, word) == NULL)
        fail_msg("expected '%s': %s", word, err.text);
    mdl_file_close(&f); /* of one that was never opened: nothing */
}

static void test_only_regular_files_with_bytes(void **state)
{
    (void)state;
    refused(path_of("absent"), "No such file");
    refused(dir, "not a regular file");
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    refused(path_of("pipe"), "not a regular file"); /* and does not wait for a writer */
    refused("/dev/zero", "not a regular file");
    write_file(path_of("empty"), "", 0);
    refused(path_of("empty"), "is empty");
}

static void open_tiny(struct mdl_file *f, struct mdl_gguf **g)
{
    const struct tst_llama_options o = {.layers = 4, .type = MDL_F32, .seed = 3};
    struct kvs_error err = {0};
    size_t size;
    uint8_t *bytes = tst_llama_make(&o, &size);
    write_file(path_of("tiny.gguf"), bytes, size);
    free(bytes);
    if (mdl_file_open(path_of("tiny.gguf"), f, &err) != KVS_OK ||
        mdl_gguf_parse(f->bytes, f->size, false, g, &err) != KVS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(mdl_file_check(f, &err), KVS_OK);
}

struct reading {
    const struct mdl_file *f;
    uint64_t sum;
};

static void read_all(void *arg)
{
    struct reading *r = arg;
    for (size_t i = 0; i < r->f->size; i++)
        r->sum += r->f->bytes[i];
}

static void test_truncated_while_mapped(void **state)
{
    (void)state;
    struct mdl_file f, other;
    struct mdl_gguf *g, *g2;
    struct mdl_fingerprint fp;
    struct kvs_error err = {0};
    struct kvs_thread *thread;
    struct reading reading = {&f, 0};
    open_tiny(&f, &g);
    assert_int_equal(truncate(path_of("tiny.gguf"), 8192), 0);
    /* Reads go on, here and on one of our threads (which block signals), and give zeros. */
    assert_int_equal(kvs_thread_start("reader", read_all, &reading, &thread), KVS_OK);
    kvs_thread_join(thread);
    assert_true(reading.sum > 0);
    assert_int_equal(mdl_fingerprint_file(g, f.bytes, f.size, &fp), KVS_OK);
    assert_int_equal(f.bytes[f.size - 1], 0);
    assert_int_equal(mdl_file_check(&f, &err), KVS_SELF_MODEL);
    assert_non_null(strstr(err.text, "cut short"));
    mdl_gguf_destroy(g);
    mdl_file_close(&f);
    /* A file opened afterwards, in the same place of the table, is healthy. */
    open_tiny(&other, &g2);
    reading = (struct reading){&other, 0};
    read_all(&reading);
    assert_int_equal(mdl_file_check(&other, &err), KVS_OK);
    mdl_gguf_destroy(g2);
    mdl_file_close(&other);
}

static void test_changed_while_mapped(void **state)
{
    (void)state;
    struct mdl_file f;
    struct mdl_gguf *g;
    struct kvs_error err = {0};
    open_tiny(&f, &g);
    struct timespec times[2] = {{1000, 0}, {1000, 0}};
    assert_int_equal(utimensat(-1, path_of("tiny.gguf"), times, 0), 0);
    assert_int_equal(mdl_file_check(&f, &err), KVS_SELF_MODEL);
    assert_non_null(strstr(err.text, "changed"));
    mdl_gguf_destroy(g);
    mdl_file_close(&f);
}

/* A SIGBUS that has nothing to do with our mappings still ends the process. Tried in a child of main, before the test
 * framework puts a handler of its own in front. */
static int foreign_sigbus_status;

static void try_foreign_sigbus(void)
{
    pid_t child = fork();
    if (child == 0) {
        struct mdl_file f;
        struct kvs_error err = {0};
        (void)signal(SIGBUS, SIG_DFL);
        if (mdl_file_open("/proc/self/exe", &f, &err) != KVS_OK)
            _exit(3);
        (void)raise(SIGBUS); /* taken by our handler, which steps aside */
        (void)raise(SIGBUS);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &foreign_sigbus_status, 0) != child)
        foreign_sigbus_status = 0;
}

static void test_other_sigbus_is_not_swallowed(void **state)
{
    (void)state;
    assert_true(WIFSIGNALED(foreign_sigbus_status));
    assert_int_equal(WTERMSIG(foreign_sigbus_status), SIGBUS);
}

static void test_bounded_number_of_open_files(void **state)
{
    (void)state;
    static struct mdl_file f[MDL_FILES_MAX + 1];
    struct kvs_error err = {0};
    write_file(path_of("x"), "abc", 3);
    for (unsigned i = 0; i < MDL_FILES_MAX; i++)
        assert_int_equal(mdl_file_open(path_of("x"), &f[i], &err), KVS_OK);
    assert_int_equal(mdl_file_open(path_of("x"), &f[MDL_FILES_MAX], &err), KVS_BUSY_FULL);
    mdl_file_close(&f[3]);
    assert_int_equal(mdl_file_open(path_of("x"), &f[3], &err), KVS_OK);
    for (unsigned i = 0; i < MDL_FILES_MAX; i++)
        mdl_file_close(&f[i]);
    mdl_file_close(&f[0]);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int remove_dir(void **state)
{
    (void)state;
    const char *const names[] = {"pipe", "empty", "tiny.gguf", "x"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unlink(path_of(names[i]));
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_regular_files_with_bytes), cmocka_unit_test(test_truncated_while_mapped),
        cmocka_unit_test(test_changed_while_mapped),          cmocka_unit_test(test_other_sigbus_is_not_swallowed),
        cmocka_unit_test(test_bounded_number_of_open_files),
    };
    try_foreign_sigbus();
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
