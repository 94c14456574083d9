/* pages.c - puts Prometheus text pages together. A family (HELP, TYPE, samples) must stand in one piece and its HELP and TYPE once, whoever
 * reports it: samples are collected per family, in the order in which families first appear. The pages come from our own daemons, but are
 * read as foreign: lines that do not look like samples are left out, families are bounded.
 * What the router counts itself (requests, TTFT, ITL) a worker has seen too: on this page it is kvasir_worker_... of the worker, so that a sum
 * over a family's labels counts nothing twice.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/board.h"

#include <stdlib.h>
#include <string.h>

#define FAMILIES_MAX 512

struct family {
    const char *name; /* borrowed from a page */
    size_t name_len;
    bool own;    /* the router's */
    bool theirs; /* of workers who count what the router counts: renamed */
    struct kvs_buf head, samples;
};
struct merge {
    struct family family[FAMILIES_MAX];
    size_t count;
};

static struct family *find(struct merge *m, const char *name, size_t n, bool theirs)
{
    for (size_t i = 0; i < m->count; i++)
        if (m->family[i].theirs == theirs && m->family[i].name_len == n && memcmp(m->family[i].name, name, n) == 0)
            return &m->family[i];
    return NULL;
}

static bool counts(const struct family *f)
{
    const char *type = strstr(kvs_buf_text(&f->head), "# TYPE ");
    return type && (strstr(type, " counter\n") || strstr(type, " histogram\n"));
}

static struct family *family_of(struct merge *m, const char *name, size_t n, const char *label)
{
    struct family *f = find(m, name, n, false);
    bool theirs = label[0] && f && f->own && counts(f);
    f = theirs ? find(m, name, n, true) : f;
    if (f || m->count == FAMILIES_MAX)
        return f;
    f = &m->family[m->count++];
    f->name = name;
    f->name_len = n;
    f->own = !label[0];
    f->theirs = theirs;
    kvs_buf_init(&f->head, 4096);
    kvs_buf_init(&f->samples, RTR_PAGE_MAX);
    return f;
}

/* name begins with the family's: with its prefix changed where it was renamed. */
static kvs_status put_name(const struct family *f, const char *name, size_t n, struct kvs_buf *out)
{
    static const char ours[] = "kvasir_";
    size_t prefix = n >= sizeof(ours) - 1 && memcmp(name, ours, sizeof(ours) - 1) == 0 ? sizeof(ours) - 1 : 0;
    return f->theirs ? kvs_buf_printf(out, "%.*sworker_%.*s", (int)prefix, name, (int)(n - prefix), name + prefix) : kvs_buf_append(out, name, n);
}

static size_t word(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] != ' ' && p[i] != '{')
        i++;
    return i;
}

/* "# HELP name text" and "# TYPE name kind": the first of each kind is kept. */
static kvs_status comment(struct merge *m, const char *line, size_t n, const char *label, struct family **current)
{
    bool help = n > 7 && memcmp(line, "# HELP ", 7) == 0, type = n > 7 && memcmp(line, "# TYPE ", 7) == 0;
    if (!help && !type)
        return KVS_OK;
    struct family *f = *current = family_of(m, line + 7, word(line + 7, n - 7), label);
    if (!f || strstr(kvs_buf_text(&f->head), help ? "# HELP " : "# TYPE "))
        return KVS_OK;
    kvs_status s = kvs_buf_append(&f->head, line, 7);
    if (s == KVS_OK)
        s = put_name(f, f->name, f->name_len, &f->head);
    return s == KVS_OK ? kvs_buf_printf(&f->head, "%.*s\n", (int)(n - 7 - f->name_len), line + 7 + f->name_len) : s;
}

static kvs_status sample(struct family *f, const char *line, size_t n, const char *label)
{
    size_t name = word(line, n);
    if (name == 0 || name == n)
        return KVS_OK;
    if (!label[0]) {
        kvs_status s = kvs_buf_append(&f->samples, line, n);
        return s == KVS_OK ? kvs_buf_puts(&f->samples, "\n") : s;
    }
    bool labelled = line[name] == '{';
    bool empty = labelled && name + 1 < n && line[name + 1] == '}';
    const char *rest = line + name + (labelled ? 1 : 0);
    kvs_status s = put_name(f, line, name, &f->samples);
    if (s != KVS_OK)
        return s;
    return kvs_buf_printf(&f->samples, "{worker=\"%s\"%s%.*s\n", label, !labelled ? "}" : empty ? "" : ",",
                          (int)(line + n - rest), rest);
}

static kvs_status add_page(struct merge *m, const struct kvs_buf *page, const char *label)
{
    const char *p = kvs_buf_text(page), *end = p + page->len;
    struct family *current = NULL;
    kvs_status s = KVS_OK;
    while (p < end && s == KVS_OK) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        if (n && p[0] == '#')
            s = comment(m, p, n, label, &current);
        else if (n && current && n >= current->name_len && memcmp(p, current->name, current->name_len) == 0)
            s = sample(current, p, n, label);
        p += n + 1;
    }
    return s;
}

kvs_status rtr_pages_merge(const char *const *labels, const struct kvs_buf *pages, size_t count, struct kvs_buf *out)
{
    struct merge *m = calloc(1, sizeof(*m));
    if (!m)
        return KVS_SELF_NOMEM;
    kvs_status s = KVS_OK;
    for (size_t i = 0; i < count && s == KVS_OK; i++)
        s = add_page(m, &pages[i], labels[i]);
    for (size_t i = 0; i < m->count; i++) {
        struct family *f = &m->family[i];
        if (s == KVS_OK && f->samples.len)
            s = kvs_buf_append(out, f->head.data, f->head.len);
        if (s == KVS_OK && f->samples.len)
            s = kvs_buf_append(out, f->samples.data, f->samples.len);
        kvs_buf_fini(&f->head);
        kvs_buf_fini(&f->samples);
    }
    free(m);
    return s;
}
