/* config.c - one table, four sources: default, file, environment, flags, applied in that order, so that the later wins.
 * The command line is walked twice: first to find --config and --help, to check every flag's name and to move positionals to
 * the end; then, after file and environment, to take the values. Every value that stands anywhere is checked, also one that
 * a later source replaces: a wrong line in a file should be found before the day on which its override is dropped.
 * Reading happens before threads start; afterwards the struct is read-only.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sys/config.h"

#include "sys/config_parse.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 20, WHERE_MAX = 160 };

struct load {
    const struct kvs_config_row *rows;
    size_t row_count;
    void *config;
    const char *file; /* of --config */
    struct kvs_error *err;
};

static const char *flag_at(const void *rows, size_t i)
{
    return ((const struct kvs_config_row *)rows)[i].flag;
}

static const char *key_at(const void *rows, size_t i)
{
    return ((const struct kvs_config_row *)rows)[i].name;
}

static const char *dashes(const char *flag)
{
    return flag[1] == '\0' ? "-" : "--";
}

/* ---- command line ---- */

/* One argument taken apart. */
struct flag {
    const struct kvs_config_row *row; /* NULL: --config or --help */
    bool help, negated;
    const char *value; /* behind '='; NULL: none */
};

static const struct kvs_config_row *find_flag(const struct load *c, const char *name, size_t n)
{
    for (size_t i = 0; i < c->row_count; i++) {
        const char *flag = c->rows[i].flag;
        if (flag != NULL && strlen(flag) == n && memcmp(flag, name, n) == 0) {
            return &c->rows[i];
        }
    }
    return NULL;
}

/* arg: as it was typed. */
static kvs_status unknown_flag(const struct load *c, const char *arg)
{
    char typed[64];
    kvs_format(typed, sizeof typed, "%.*s", (int)strcspn(arg, "="), arg);
    const char *name = typed + strspn(typed, "-");
    ptrdiff_t near = kvs_config_nearest(name, flag_at, c->rows, c->row_count);
    if (near >= 0) {
        const char *flag = c->rows[near].flag;
        return kvs_fail(c->err, KVS_SELF_CONFIG, "unknown flag %s (did you mean %s%s?); --help lists all", typed,
                        dashes(flag), flag);
    }
    return kvs_fail(c->err, KVS_SELF_CONFIG, "unknown flag %s; --help lists all", typed);
}

static bool is_flag(const char *arg)
{
    return arg[0] == '-' && arg[1] != '\0'; /* "-" alone is a name for stdin */
}

static kvs_status take_apart(const struct load *c, const char *arg, struct flag *out)
{
    bool is_long = arg[1] == '-';
    const char *name = arg + (is_long ? 2 : 1);
    size_t n = strcspn(name, "=");
    *out = (struct flag){.value = name[n] == '=' ? name + n + 1 : NULL};
    bool plausible = is_long == (n > 1);
    if ((is_long && n == 4 && memcmp(name, "help", 4) == 0) || (!is_long && n == 1 && *name == 'h')) {
        out->help = find_flag(c, name, n) == NULL;
    }
    if (out->help || (is_long && n == 6 && memcmp(name, "config", 6) == 0)) {
        return KVS_OK;
    }
    out->row = plausible ? find_flag(c, name, n) : NULL;
    if (out->row == NULL && n > 3 && memcmp(name, "no-", 3) == 0) {
        out->row = find_flag(c, name + 3, n - 3);
        out->negated = out->row != NULL && out->row->type == KVS_CFG_BOOL;
        out->row = out->negated ? out->row : NULL;
    }
    if (out->row == NULL) {
        return unknown_flag(c, arg);
    }
    if (out->row->type == KVS_CFG_BOOL && out->value != NULL) {
        return kvs_fail(c->err, KVS_SELF_CONFIG, "--%s takes no value; write --%s or --no-%s", out->row->flag,
                        out->row->flag, out->row->flag);
    }
    return KVS_OK;
}

/* The flag's value: behind '=' or the next argument (then *i moves on). */
static kvs_status flag_value(const struct load *c, struct flag *f, int end, char **argv, int *i)
{
    if (f->value != NULL || (f->row != NULL && f->row->type == KVS_CFG_BOOL)) {
        return KVS_OK;
    }
    if (*i + 1 >= end) {
        return kvs_fail(c->err, KVS_SELF_CONFIG, "%.64s needs a value", argv[*i]);
    }
    f->value = argv[++*i];
    return KVS_OK;
}

static void move_to_end(char **argv, int i, int argc)
{
    char *arg = argv[i];
    memmove(argv + i, argv + i + 1, (size_t)(argc - 1 - i) * sizeof *argv);
    argv[argc - 1] = arg;
}

/* Walk one. *end_out: flags stand in argv[1 .. end), positionals from there on. */
static kvs_status find_flags(struct load *c, int argc, char **argv, bool positionals, bool *help_out, int *end_out)
{
    int end = argc;
    bool only_positionals = false;
    for (int i = 1; i < end;) {
        if (only_positionals || !is_flag(argv[i])) {
            if (!positionals) {
                return kvs_fail(c->err, KVS_SELF_CONFIG, "unexpected argument '%.64s'; --help lists what is understood",
                                argv[i]);
            }
            move_to_end(argv, i, argc);
            end--;
            continue;
        }
        if (strcmp(argv[i], "--") == 0) {
            only_positionals = true;
            i++;
            continue;
        }
        struct flag f;
        kvs_status st = take_apart(c, argv[i], &f);
        if (st == KVS_OK && f.help) {
            if (help_out == NULL) {
                return unknown_flag(c, argv[i]);
            }
            *help_out = true;
            return KVS_OK;
        }
        st = st == KVS_OK ? flag_value(c, &f, end, argv, &i) : st;
        if (st != KVS_OK) {
            return st;
        }
        c->file = f.row == NULL ? f.value : c->file;
        i++;
    }
    *end_out = end;
    return KVS_OK;
}

/* Walk two. */
static kvs_status apply_flags(const struct load *c, int end, char **argv)
{
    for (int i = 1; i < end && strcmp(argv[i], "--") != 0; i++) {
        struct flag f;
        char where[WHERE_MAX];
        kvs_status st = take_apart(c, argv[i], &f);
        st = st == KVS_OK ? flag_value(c, &f, end, argv, &i) : st;
        if (st == KVS_OK && f.row != NULL) {
            kvs_format(where, sizeof where, "%s%s", dashes(f.row->flag), f.row->flag);
            const char *value = f.value != NULL ? f.value : f.negated ? "false" : "true";
            st = kvs_config_assign(f.row, c->config, value, where, c->err);
        }
        if (st != KVS_OK) {
            return st;
        }
    }
    return KVS_OK;
}

/* ---- file ---- */

static kvs_status read_file(const struct load *c, struct kvs_buf *text)
{
    int fd = open(c->file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return kvs_fail(c->err, KVS_SELF_CONFIG, "--config %.100s: %s", c->file, strerror(errno));
    }
    kvs_status st = KVS_OK;
    for (;;) {
        uint8_t piece[4096];
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            st = kvs_fail(c->err, KVS_SELF_CONFIG, "--config %.100s: %s", c->file, strerror(errno));
        } else if (n > 0) {
            st = kvs_buf_append(text, piece, (size_t)n);
        }
        if (n <= 0 || st != KVS_OK) {
            break;
        }
    }
    (void)close(fd);
    if (st == KVS_BUSY_FULL) {
        st = kvs_fail(c->err, KVS_SELF_CONFIG, "--config %.100s: the file is larger than 1M", c->file);
    } else if (st == KVS_OK && text->len > 0 && memchr(text->data, 0, text->len) != NULL) {
        st = kvs_fail(c->err, KVS_SELF_CONFIG, "--config %.100s: not a text file (it holds a zero byte)", c->file);
    }
    return st;
}

static char *trim(char *p)
{
    while (isspace((unsigned char)*p)) {
        p++;
    }
    size_t n = strlen(p);
    while (n > 0 && isspace((unsigned char)p[n - 1])) {
        p[--n] = '\0';
    }
    return p;
}

/* Cuts a comment: # at the beginning or behind white space, outside of quotes. Takes quotes off. */
static char *bare_value(char *p)
{
    p = trim(p);
    if (*p == '"') {
        char *close_quote = strchr(p + 1, '"');
        char *after = close_quote != NULL ? trim(close_quote + 1) : NULL;
        if (after != NULL && (*after == '\0' || *after == '#')) {
            *close_quote = '\0';
            return p + 1;
        }
        return p;
    }
    for (char *q = p; *q != '\0'; q++) {
        if (*q == '#' && (q == p || isspace((unsigned char)q[-1]))) {
            *q = '\0';
            break;
        }
    }
    return trim(p);
}

static kvs_status apply_line(const struct load *c, char *line, unsigned number)
{
    char where[WHERE_MAX];
    line = trim(line);
    if (*line == '\0' || *line == '#') {
        return KVS_OK;
    }
    char *equal = strchr(line, '=');
    if (equal == NULL) {
        return kvs_fail(c->err, KVS_SELF_CONFIG, "%.100s:%u: '%.64s' is no 'key = value' line", c->file, number, line);
    }
    *equal = '\0';
    char *key = trim(line);
    for (size_t i = 0; i < c->row_count; i++) {
        if (strcmp(c->rows[i].name, key) == 0) {
            kvs_format(where, sizeof where, "%.100s:%u: %s", c->file, number, key);
            return kvs_config_assign(&c->rows[i], c->config, bare_value(equal + 1), where, c->err);
        }
    }
    ptrdiff_t near = kvs_config_nearest(key, key_at, c->rows, c->row_count);
    if (near >= 0) {
        return kvs_fail(c->err, KVS_SELF_CONFIG, "%.100s:%u: unknown key '%.64s' (did you mean '%s'?)", c->file, number, key,
                        c->rows[near].name);
    }
    return kvs_fail(c->err, KVS_SELF_CONFIG, "%.100s:%u: unknown key '%.64s'; --help lists all", c->file, number, key);
}

static kvs_status apply_file(const struct load *c)
{
    struct kvs_buf text;
    kvs_buf_init(&text, FILE_MAX);
    kvs_status st = read_file(c, &text);
    char *line = (char *)text.data;
    for (unsigned number = 1; st == KVS_OK && line != NULL; number++) {
        char *next = strchr(line, '\n');
        if (next != NULL) {
            *next++ = '\0';
        }
        st = apply_line(c, line, number);
        line = next;
    }
    kvs_buf_fini(&text);
    return st;
}

/* ---- environment ---- */

static void environment_name(const char *key, char *out, size_t cap)
{
    size_t n = kvs_format(out, cap, "KVASIR_%s", key);
    for (size_t i = 0; i < n; i++) {
        out[i] = out[i] == '.' || out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
    }
}

static kvs_status apply_environment(const struct load *c)
{
    for (size_t i = 0; i < c->row_count; i++) {
        char name[WHERE_MAX];
        environment_name(c->rows[i].name, name, sizeof name);
        const char *value = getenv(name);
        if (value != NULL) {
            kvs_status st = kvs_config_assign(&c->rows[i], c->config, value, name, c->err);
            if (st != KVS_OK) {
                return st;
            }
        }
    }
    return KVS_OK;
}

/* ---- public ---- */

static size_t field_bytes(const struct kvs_config_row *row)
{
    switch (row->type) {
    case KVS_CFG_STRING:
    case KVS_CFG_NAME: return (size_t)row->max;
    case KVS_CFG_BOOL: return sizeof(bool);
    case KVS_CFG_U32:
    case KVS_CFG_ENUM: return sizeof(uint32_t);
    case KVS_CFG_F32: return sizeof(float);
    case KVS_CFG_U64:
    case KVS_CFG_SIZE:
    case KVS_CFG_SECONDS: break;
    }
    return sizeof(uint64_t);
}

static void apply_defaults(const struct load *c)
{
    for (size_t i = 0; i < c->row_count; i++) {
        const struct kvs_config_row *row = &c->rows[i];
        if (row->value != NULL) {
            struct kvs_error err;
            KVS_ASSERT(kvs_config_assign(row, c->config, row->value, row->name, &err) == KVS_OK);
        } else {
            memset((char *)c->config + row->offset, 0, field_bytes(row));
        }
    }
}

kvs_status kvs_config_load(const struct kvs_config_row *rows, size_t row_count, void *config, int argc, char **argv,
                           int *rest_out, bool *help_out, struct kvs_error *err)
{
    struct load c = {.rows = rows, .row_count = row_count, .config = config, .err = err};
    bool help = false;
    int end = argc;
    apply_defaults(&c);
    kvs_status st = find_flags(&c, argc, argv, rest_out != NULL, help_out != NULL ? &help : NULL, &end);
    if (st == KVS_OK && !help) {
        st = c.file != NULL ? apply_file(&c) : KVS_OK;
        st = st == KVS_OK ? apply_environment(&c) : st;
        st = st == KVS_OK ? apply_flags(&c, end, argv) : st;
    }
    if (st != KVS_OK) {
        return st;
    }
    if (rest_out != NULL) {
        *rest_out = end;
    }
    if (help_out != NULL) {
        *help_out = help;
    }
    return KVS_OK;
}

static const char *value_word(const struct kvs_config_row *row)
{
    switch (row->type) {
    case KVS_CFG_STRING: return " TEXT";
    case KVS_CFG_NAME: return " NAME";
    case KVS_CFG_U32:
    case KVS_CFG_U64: return " N";
    case KVS_CFG_SIZE: return " SIZE";
    case KVS_CFG_SECONDS: return " SECONDS";
    case KVS_CFG_F32: return " X";
    case KVS_CFG_ENUM: return " WORD";
    case KVS_CFG_BOOL: break;
    }
    return "";
}

static kvs_status help_row(const struct kvs_config_row *row, struct kvs_buf *out)
{
    char left[96] = "", range[160] = "", name[WHERE_MAX];
    if (row->flag != NULL) {
        bool on = row->type == KVS_CFG_BOOL && row->value != NULL && strcmp(row->value, "true") == 0;
        kvs_format(left, sizeof left, "%s%s%s%s", dashes(row->flag), on ? "no-" : "", row->flag, value_word(row));
    }
    if (row->type != KVS_CFG_STRING && row->type != KVS_CFG_NAME && row->type != KVS_CFG_BOOL) {
        kvs_config_range(row, range, sizeof range);
    }
    environment_name(row->name, name, sizeof name);
    kvs_status st = kvs_buf_printf(out, "  %-28s %s", left, row->help);
    if (st == KVS_OK && row->value != NULL && row->value[0] != '\0') {
        st = kvs_buf_printf(out, " [%s]", row->value);
    }
    if (st == KVS_OK && range[0] != '\0') {
        st = kvs_buf_printf(out, " (%s)", range);
    }
    return st == KVS_OK ? kvs_buf_printf(out, "\n  %-28s   %s, %s\n", "", row->name, name) : st;
}

kvs_status kvs_config_help(const struct kvs_config_row *rows, size_t row_count, const char *usage, struct kvs_buf *out)
{
    kvs_status st = kvs_buf_printf(out, "%s\n\nFlags (default) and, below each, its name in the --config file and in the environment.\n"
                                        "A flag wins over the environment, that over the file, that over the default.\n\n",
                                   usage);
    for (size_t i = 0; i < row_count && st == KVS_OK; i++) {
        st = help_row(&rows[i], out);
    }
    if (st == KVS_OK) {
        st = kvs_buf_printf(out, "  %-28s %s\n  %-28s %s\n", "--config FILE", "read 'key = value' lines from FILE", "--help, -h",
                            "print this");
    }
    return st;
}
