/* config_test.c - precedence, every type, and the exact words of the errors a user meets.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sys/config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct settings {
    char listen[24];
    uint32_t block_tokens;
    uint64_t count, memory, deadline_us;
    float ratio;
    bool restart, verbose;
    uint32_t transport;
    uint32_t n;
    char name[8];
};

#define AT(field) offsetof(struct settings, field)
static const struct kvs_config_row rows[] = {
    {"router.listen", "listen", KVS_CFG_STRING, "127.0.0.1:8080", 0, 24, NULL, "address to listen on", AT(listen)},
    {"kv.block_tokens", "block-tokens", KVS_CFG_U32, "64", 1, 1024, NULL, "tokens a block holds", AT(block_tokens)},
    {"kv.count", NULL, KVS_CFG_U64, NULL, 0, 0, NULL, "a number without a flag", AT(count)},
    {"kv.memory", "kv-memory", KVS_CFG_SIZE, "2G", 65536, 1099511627776.0, NULL, "memory for KV", AT(memory)},
    {"router.deadline", "deadline", KVS_CFG_SECONDS, "600", 0.5, 3600, NULL, "request deadline", AT(deadline_us)},
    {"router.ratio", "ratio", KVS_CFG_F32, "0.5", 0, 1, NULL, "a ratio", AT(ratio)},
    {"up.restart", "restart", KVS_CFG_BOOL, "true", 0, 0, NULL, "start dead children again", AT(restart)},
    {"log.verbose", "verbose", KVS_CFG_BOOL, NULL, 0, 0, NULL, "say more", AT(verbose)},
    {"kvt.transport", "transport", KVS_CFG_ENUM, "auto", 0, 0, "auto|shm|tcp", "how KV travels", AT(transport)},
    {"generate.n", "n", KVS_CFG_U32, "16", 0, 0, NULL, "tokens to generate", AT(n)},
    {"cluster.name", "cluster", KVS_CFG_NAME, "default", 0, 8, NULL, "cluster to belong to", AT(name)},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static struct settings s;
static struct kvs_error err;
static int rest;
static bool help;
static char *args[16];

/* Loads from a command line written with single spaces. */
static kvs_status load(const char *line)
{
    static char text[512];
    int argc = 1;
    args[0] = (char *)"prog";
    snprintf(text, sizeof text, "%s", line);
    for (char *p = text; *p != '\0';) {
        args[argc++] = p;
        char *space = strchr(p, ' ');
        if (space == NULL) {
            break;
        }
        *space = '\0';
        p = space + 1;
    }
    memset(&s, 0xEE, sizeof s);
    memset(&err, 0, sizeof err);
    help = false;
    return kvs_config_load(rows, ROWS, &s, argc, args, &rest, &help, &err);
}

static char file_name[64];

static void write_file(const char *text)
{
    snprintf(file_name, sizeof file_name, "/tmp/kvasir-config-test-XXXXXX");
    int fd = mkstemp(file_name);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static kvs_status load_file(const char *text, const char *more)
{
    char line[512];
    write_file(text);
    snprintf(line, sizeof line, "--config %s%s%s", file_name, more[0] != '\0' ? " " : "", more);
    kvs_status st = load(line);
    unlink(file_name);
    return st;
}

static void test_defaults(void **state)
{
    (void)state;
    assert_int_equal(load(""), KVS_OK);
    assert_string_equal(s.listen, "127.0.0.1:8080");
    assert_int_equal(s.block_tokens, 64);
    assert_int_equal(s.count, 0);
    assert_int_equal(s.memory, (uint64_t)2 << 30);
    assert_int_equal(s.deadline_us, 600000000);
    assert_true(s.ratio == 0.5f);
    assert_true(s.restart);
    assert_false(s.verbose);
    assert_int_equal(s.transport, 0);
    assert_string_equal(s.name, "default");
    assert_int_equal(rest, 1);
}

static void test_precedence(void **state)
{
    (void)state;
    const char *file = "# a comment\n\n kv.block_tokens = 16 \nkv.memory=128M # behind a value\nrouter.listen = \"a #b\" # c\n"
                       "kv.count = 7\nup.restart = no";
    assert_int_equal(load_file(file, ""), KVS_OK);
    assert_int_equal(s.block_tokens, 16);
    assert_int_equal(s.memory, 128 << 20);
    assert_string_equal(s.listen, "a #b");
    assert_int_equal(s.count, 7);
    assert_false(s.restart);
    setenv("KVASIR_KV_BLOCK_TOKENS", "32", 1);
    setenv("KVASIR_KV_COUNT", "18446744073709551615", 1);
    assert_int_equal(load_file(file, ""), KVS_OK);
    assert_int_equal(s.block_tokens, 32);
    assert_true(s.count == UINT64_MAX);
    assert_int_equal(load_file(file, "--block-tokens 48"), KVS_OK);
    assert_int_equal(s.block_tokens, 48);
    assert_int_equal(load("--block-tokens=1024 --restart"), KVS_OK);
    assert_int_equal(s.block_tokens, 1024);
    assert_true(s.restart);
    setenv("KVASIR_KV_BLOCK_TOKENS", "many", 1);
    assert_int_equal(load("--block-tokens 48"), KVS_SELF_CONFIG); /* wrong, though overridden */
    assert_string_equal(err.text, "KVASIR_KV_BLOCK_TOKENS: 'many' is not a whole number (1 to 1024)");
    unsetenv("KVASIR_KV_BLOCK_TOKENS");
    unsetenv("KVASIR_KV_COUNT");
    setenv("KVASIR_SERVICE_HOST", "10.0.0.1", 1); /* not ours: left alone */
    assert_int_equal(load(""), KVS_OK);
}

static void test_every_type_by_flag(void **state)
{
    (void)state;
    assert_int_equal(load("--listen 0.0.0.0:1 --kv-memory 64K --deadline 0.5 --ratio 0.25 --no-restart --verbose "
                          "--transport tcp -n 5"),
                     KVS_OK);
    assert_string_equal(s.listen, "0.0.0.0:1");
    assert_int_equal(s.memory, 65536);
    assert_int_equal(s.deadline_us, 500000);
    assert_true(s.ratio == 0.25f);
    assert_true(!s.restart && s.verbose);
    assert_int_equal(s.transport, 2);
    assert_int_equal(s.n, 5);
    assert_int_equal(load("--listen= --ratio 1e-1"), KVS_OK);
    assert_string_equal(s.listen, "");
    assert_true(s.ratio == 0.1f);
}

static void test_positionals_go_last(void **state)
{
    (void)state;
    assert_int_equal(load("model --block-tokens 2 pull - --verbose -- --x -n"), KVS_OK);
    assert_int_equal(s.block_tokens, 2);
    assert_true(s.verbose);
    const char *want[] = {"model", "pull", "-", "--x", "-n"};
    for (int i = 0; i < 5; i++) {
        assert_string_equal(args[rest + i], want[i]);
    }
    assert_int_equal(rest, 5); /* prog, --block-tokens, 2, --verbose, -- */
    char *argv[] = {(char *)"prog", (char *)"stray"};
    assert_int_equal(kvs_config_load(rows, ROWS, &s, 2, argv, NULL, NULL, &err), KVS_SELF_CONFIG);
    assert_string_equal(err.text, "unexpected argument 'stray'; --help lists what is understood");
}

static void test_errors_name_cause_and_remedy(void **state)
{
    (void)state;
    static const struct {
        const char *line, *text;
    } cases[] = {
        {"--blok-tokens 3", "unknown flag --blok-tokens (did you mean --block-tokens?); --help lists all"},
        {"--zzzzzzzzzz", "unknown flag --zzzzzzzzzz; --help lists all"},
        {"-q", "unknown flag -q; --help lists all"},
        {"-verbose", "unknown flag -verbose (did you mean --verbose?); --help lists all"},
        {"--block-tokens", "--block-tokens needs a value"},
        {"--block-tokens 0", "--block-tokens: 0 is out of range; give 1 to 1024"},
        {"--block-tokens 1025", "--block-tokens: 1025 is out of range; give 1 to 1024"},
        {"--block-tokens -1", "--block-tokens: '-1' is not a whole number (1 to 1024)"},
        {"--block-tokens 12x", "--block-tokens: '12x' is not a whole number (1 to 1024)"},
        {"--block-tokens=", "--block-tokens: '' is not a whole number (1 to 1024)"},
        {"--block-tokens +5", "--block-tokens: '+5' is not a whole number (1 to 1024)"},
        {"-n 4294967296", "-n: 4294967296 is out of range; give 0 to 4294967295"},
        {"-n 99999999999999999999", "-n: '99999999999999999999' is not a whole number"},
        {"--kv-memory 2X", "--kv-memory: '2X' is not a size such as 64K, 512M or 2G (64K to 1T)"},
        {"--kv-memory 1K", "--kv-memory: 1K is out of range; give 64K to 1T"},
        {"--deadline soon", "--deadline: 'soon' is not seconds such as 30 or 0.5 (0.5 to 3600)"},
        {"--deadline 0.1", "--deadline: 0.1 is out of range; give 0.5 to 3600"},
        {"--ratio nan", "--ratio: 'nan' is not a number (0 to 1)"},
        {"--ratio 0x1", "--ratio: '0x1' is not a number (0 to 1)"},
        {"--ratio 1.5", "--ratio: 1.5 is out of range; give 0 to 1"},
        {"--transport udp", "--transport: 'udp' is not understood; give auto, shm or tcp"},
        {"--transport sh", "--transport: 'sh' is not understood; give auto, shm or tcp"},
        {"--restart=yes", "--restart takes no value; write --restart or --no-restart"},
        {"--no-listen x", "unknown flag --no-listen (did you mean --listen?); --help lists all"},
        {"--listen 123456789012345678901234", "--listen: the text is too long (24 bytes); give at most 23 bytes"},
        {"--cluster a/b", "--cluster: 'a/b' is not a name (letters, digits, '-', '_' and '.' only, the first no '-')"},
        {"--cluster=", "--cluster: '' is not a name (letters, digits, '-', '_' and '.' only, the first no '-')"},
        {"--cluster=-a", "--cluster: '-a' is not a name (letters, digits, '-', '_' and '.' only, the first no '-')"},
        {"--cluster \xc3\xa4", "--cluster: '\xc3\xa4' is not a name (letters, digits, '-', '_' and '.' only, the first no '-')"},
        {"--cluster Prod.1-a_", "--cluster: the text is too long (9 bytes); give at most 7 bytes"},
        {"--config /nonexistent/k.conf", "--config /nonexistent/k.conf: No such file or directory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(load(cases[i].line), KVS_SELF_CONFIG);
        assert_string_equal(err.text, cases[i].text);
    }
}

static void test_errors_of_a_file_name_the_line(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text; /* text: what follows the file's name */
    } cases[] = {
        {"\n\nkv.blok_tokens = 3\n", ":3: unknown key 'kv.blok_tokens' (did you mean 'kv.block_tokens'?)"},
        {"kv.block_tokens 3", ":1: 'kv.block_tokens 3' is no 'key = value' line"},
        {"kv.block_tokens = 4096", ":1: kv.block_tokens: 4096 is out of range; give 1 to 1024"},
        {"kv.count =", ":1: kv.count: '' is not a whole number"},
        {"up.restart = maybe", ":1: up.restart: 'maybe' is not understood; give true or false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char want[256];
        assert_int_equal(load_file(cases[i].file, ""), KVS_SELF_CONFIG);
        snprintf(want, sizeof want, "%s%s", file_name, cases[i].text);
        assert_string_equal(err.text, want);
    }
}

static void test_help(void **state)
{
    (void)state;
    struct kvs_buf out;
    assert_int_equal(load("--block-tokens 0 --help"), KVS_OK); /* help even if other values are wrong */
    assert_true(help);
    assert_int_equal(load("-h"), KVS_OK);
    assert_true(help);
    assert_int_equal(load("--listen --help"), KVS_OK); /* here it is a value */
    assert_false(help);
    assert_string_equal(s.listen, "--help");
    kvs_buf_init(&out, 1 << 16);
    assert_int_equal(kvs_config_help(rows, ROWS, "usage: prog [flags]", &out), KVS_OK);
    const char *text = kvs_buf_text(&out);
    assert_int_equal(strncmp(text, "usage: prog [flags]\n", 20), 0);
    assert_non_null(strstr(text, "--block-tokens N"));
    assert_non_null(strstr(text, "tokens a block holds [64] (1 to 1024)\n"));
    assert_non_null(strstr(text, "kv.block_tokens, KVASIR_KV_BLOCK_TOKENS\n"));
    assert_non_null(strstr(text, "--no-restart "));
    assert_non_null(strstr(text, "--verbose "));
    assert_non_null(strstr(text, "-n N "));
    assert_non_null(strstr(text, "(auto, shm or tcp)"));
    for (size_t i = 0; i < ROWS; i++) {
        assert_non_null(strstr(text, rows[i].name)); /* nothing is undocumented */
    }
    kvs_buf_fini(&out);
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},        {"1", 1},          {"512M", 536870912}, {"2G", 2147483648u},        {"64K", 65536},
                {"64k", 65536},  {"1KiB", 1024},    {"3MB", 3145728},    {"1T", 1099511627776u},     {"7B", 7},
                {"16777215T", 16777215ull << 40},   {"18446744073709551615", UINT64_MAX}};
    static const char *const bad[] = {"",   "K",   "-1", " 1", "1 ", "1.5G", "1Ki", "1KK", "1iB", "16777216T", "18446744073709551616",
                                      "0x10", "1X"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t v = 1;
        assert_int_equal(kvs_parse_size(good[i].text, &v), KVS_OK);
        assert_true(v == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t v = 42;
        assert_int_equal(kvs_parse_size(bad[i], &v), KVS_SELF_CONFIG);
        assert_int_equal(v, 42);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_every_type_by_flag),
        cmocka_unit_test(test_positionals_go_last),
        cmocka_unit_test(test_errors_name_cause_and_remedy),
        cmocka_unit_test(test_errors_of_a_file_name_the_line),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
