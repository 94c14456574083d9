/* pages.c - puts Prometheus text pages together. A family (HELP, TYPE, samples) must stand in one piece and its HELP and TYPE once, whoever
 * reports it: samples are collected per family, in the order in which families first appear. The pages come from our own daemons, but are
 * read as foreign: lines that do not look like samples are left out, families are bounded.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/board.h"

#include <stdlib.h>
#include <string.h>

#define FAMILIES_MAX 512

struct family {
    const char *name; /* borrowed from a page */
    size_t name_len;
    struct kvs_buf head, samples;
};
struct merge {
    struct family family[FAMILIES_MAX];
    size_t count;
};

static struct family *family_of(struct merge *m, const char *name, size_t n)
{
    for (size_t i = 0; i < m->count; i++)
        if (m->family[i].name_len == n && memcmp(m->family[i].name, name, n) == 0)
            return &m->family[i];
    if (m->count == FAMILIES_MAX)
        return NULL;
    struct family *f = &m->family[m->count++];
    f->name = name;
    f->name_len = n;
    kvs_buf_init(&f->head, 4096);
    kvs_buf_init(&f->samples, RTR_PAGE_MAX);
    return f;
}

static size_t word(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] != ' ' && p[i] != '{')
        i++;
    return i;
}

/* "# HELP name text" and "# TYPE name kind": the first of each kind is kept. */
static kvs_status comment(struct merge *m, const char *line, size_t n, struct family **current)
{
    bool help = n > 7 && memcmp(line, "# HELP ", 7) == 0, type = n > 7 && memcmp(line, "# TYPE ", 7) == 0;
    if (!help && !type)
        return KVS_OK;
    struct family *f = *current = family_of(m, line + 7, word(line + 7, n - 7));
    if (!f || strstr(kvs_buf_text(&f->head), help ? "# HELP " : "# TYPE "))
        return KVS_OK;
    kvs_status s = kvs_buf_append(&f->head, line, n);
    return s == KVS_OK ? kvs_buf_puts(&f->head, "\n") : s;
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
    return kvs_buf_printf(&f->samples, "%.*s{worker=\"%s\"%s%.*s\n", (int)name, line, label, !labelled ? "}" : empty ? "" : ",",
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
            s = comment(m, p, n, &current);
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
