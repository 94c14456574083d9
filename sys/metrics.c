/* metrics.c - the registry of counters, gauges and histograms, and its Prometheus text (version 0.0.4).
 *   registry -> family (name, kind, help) -> series (labels, value) -> next series
 * Prometheus wants one HELP and TYPE a name and all its series together, so series hang on their family, in order of
 * creation. Updates are single atomics without the lock; the lock guards the lists only, and what hangs on them is never
 * freed before the registry. A histogram's count is the sum of its buckets as read, so "+Inf" and _count always agree.
 * Numbers are written so that reading them back gives the same double: integers plainly, others with the fewest digits.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sys/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SERIES_MAX = 8192, BOUNDS_MAX = 64 };

enum kind { COUNTER, GAUGE, HISTOGRAM };

/* One series; which fields live depends on the family's kind. The three public handles are views of it. */
struct series {
    struct series *next;
    char *labels; /* owned */
    _Atomic uint64_t count;
    _Atomic double value; /* gauge; histogram: sum */
    size_t bound_count;
    double bounds[BOUNDS_MAX];
    _Atomic uint64_t buckets[BOUNDS_MAX + 1]; /* not cumulative; the last is above every bound */
};
struct kvs_counter {
    struct series s;
};
struct kvs_gauge {
    struct series s;
};
struct kvs_histogram {
    struct series s;
};

struct family {
    struct family *next;
    enum kind kind;
    char *name, *help; /* owned */
    struct series *first, *last;
};

struct kvs_metrics {
    pthread_mutex_t *lock; /* by pointer: kvs_metrics_write takes a const registry */
    struct family *first, *last;
    size_t series_count;
};

const double kvs_latency_bounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                     0.25,   0.5,     1,      2.5,   5,      10,    30,   60,    120,  300};
const size_t kvs_latency_bound_count = sizeof kvs_latency_bounds / sizeof kvs_latency_bounds[0];

kvs_status kvs_metrics_create(struct kvs_metrics **out)
{
    struct kvs_metrics *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return KVS_SELF_NOMEM;
    }
    m->lock = malloc(sizeof *m->lock);
    if (m->lock == NULL || pthread_mutex_init(m->lock, NULL) != 0) {
        free(m->lock);
        free(m);
        return KVS_SELF_NOMEM;
    }
    *out = m;
    return KVS_OK;
}

static void series_free(struct series *s)
{
    if (s != NULL) {
        free(s->labels);
        free(s);
    }
}

static void family_free(struct family *f)
{
    if (f == NULL) {
        return;
    }
    for (struct series *s = f->first; s != NULL;) {
        struct series *next = s->next;
        series_free(s);
        s = next;
    }
    free(f->name);
    free(f->help);
    free(f);
}

void kvs_metrics_destroy(struct kvs_metrics *m)
{
    if (m == NULL) {
        return;
    }
    for (struct family *f = m->first; f != NULL;) {
        struct family *next = f->next;
        family_free(f);
        f = next;
    }
    pthread_mutex_destroy(m->lock);
    free(m->lock);
    free(m);
}

static bool name_is_valid(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789";
    return name[0] != '\0' && !(name[0] >= '0' && name[0] <= '9') && name[strspn(name, letters)] == '\0';
}

static struct family *family_get(struct kvs_metrics *m, enum kind kind, const char *name, const char *help)
{
    for (struct family *f = m->first; f != NULL; f = f->next) {
        if (strcmp(f->name, name) == 0) {
            KVS_ASSERT(f->kind == kind);
            return f;
        }
    }
    struct family *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return NULL;
    }
    f->kind = kind;
    f->name = strdup(name);
    f->help = strdup(help);
    if (f->name == NULL || f->help == NULL) {
        family_free(f);
        return NULL;
    }
    if (m->last == NULL) {
        m->first = f;
    } else {
        m->last->next = f;
    }
    m->last = f;
    return f;
}

static struct series *series_get(struct kvs_metrics *m, enum kind kind, const char *name, const char *labels,
                                 const char *help)
{
    struct family *f = family_get(m, kind, name, help);
    if (f == NULL) {
        return NULL;
    }
    for (struct series *s = f->first; s != NULL; s = s->next) {
        if (strcmp(s->labels, labels) == 0) {
            return s;
        }
    }
    /* The three handle types wrap a series and nothing else. */
    struct series *s = m->series_count < SERIES_MAX ? calloc(1, sizeof *s) : NULL;
    if (s == NULL || (s->labels = strdup(labels)) == NULL) {
        series_free(s);
        return NULL;
    }
    if (f->last == NULL) {
        f->first = s;
    } else {
        f->last->next = s;
    }
    f->last = s;
    m->series_count++;
    return s;
}

struct kvs_counter *kvs_counter(struct kvs_metrics *m, const char *name, const char *labels, const char *help)
{
    KVS_ASSERT(name_is_valid(name));
    pthread_mutex_lock(m->lock);
    struct series *s = series_get(m, COUNTER, name, labels, help);
    pthread_mutex_unlock(m->lock);
    return (struct kvs_counter *)s;
}

struct kvs_gauge *kvs_gauge(struct kvs_metrics *m, const char *name, const char *labels, const char *help)
{
    KVS_ASSERT(name_is_valid(name));
    pthread_mutex_lock(m->lock);
    struct series *s = series_get(m, GAUGE, name, labels, help);
    pthread_mutex_unlock(m->lock);
    return (struct kvs_gauge *)s;
}

struct kvs_histogram *kvs_histogram(struct kvs_metrics *m, const char *name, const char *labels, const char *help,
                                    const double *bounds, size_t bound_count)
{
    KVS_ASSERT(name_is_valid(name) && bound_count > 0 && bound_count <= BOUNDS_MAX);
    for (size_t i = 1; i < bound_count; i++) {
        KVS_ASSERT(bounds[i - 1] < bounds[i]);
    }
    pthread_mutex_lock(m->lock);
    struct series *s = series_get(m, HISTOGRAM, name, labels, help);
    if (s != NULL && s->bound_count == 0) {
        memcpy(s->bounds, bounds, bound_count * sizeof *bounds);
        s->bound_count = bound_count;
    }
    KVS_ASSERT(s == NULL || s->bound_count == bound_count);
    pthread_mutex_unlock(m->lock);
    return (struct kvs_histogram *)s;
}

void kvs_counter_add(struct kvs_counter *c, uint64_t n)
{
    if (c != NULL) {
        atomic_fetch_add_explicit(&c->s.count, n, memory_order_relaxed);
    }
}

uint64_t kvs_counter_value(const struct kvs_counter *c)
{
    return c == NULL ? 0 : atomic_load_explicit(&c->s.count, memory_order_relaxed);
}

void kvs_gauge_set(struct kvs_gauge *g, double v)
{
    if (g != NULL) {
        atomic_store_explicit(&g->s.value, v, memory_order_relaxed);
    }
}

double kvs_gauge_value(const struct kvs_gauge *g)
{
    return g == NULL ? 0 : atomic_load_explicit(&g->s.value, memory_order_relaxed);
}

void kvs_histogram_observe(struct kvs_histogram *h, double v)
{
    if (h == NULL || isnan(v)) {
        return;
    }
    size_t i = 0;
    while (i < h->s.bound_count && v > h->s.bounds[i]) {
        i++;
    }
    atomic_fetch_add_explicit(&h->s.buckets[i], 1, memory_order_relaxed);
    double sum = atomic_load_explicit(&h->s.value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&h->s.value, &sum, sum + v, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

static const char *number(char *out, size_t cap, double v)
{
    if (isnan(v)) {
        return "NaN";
    }
    if (isinf(v)) {
        return v > 0 ? "+Inf" : "-Inf";
    }
    if (v == floor(v) && fabs(v) < 1e15) {
        kvs_format(out, cap, "%.0f", v == 0 ? 0 : v);
        return out;
    }
    for (int digits = 1; digits <= 17; digits++) {
        kvs_format(out, cap, "%.*g", digits, v);
        if (strtod(out, NULL) == v) {
            break;
        }
    }
    return out;
}

static kvs_status put_help(struct kvs_buf *out, const struct family *f)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    kvs_status st = kvs_buf_printf(out, "# HELP %s ", f->name);
    for (const char *p = f->help; *p != '\0' && st == KVS_OK;) {
        size_t n = strcspn(p, "\\\n");
        st = kvs_buf_append(out, p, n);
        p += n;
        if (*p != '\0' && st == KVS_OK) {
            st = kvs_buf_puts(out, *p == '\n' ? "\\n" : "\\\\");
            p++;
        }
    }
    return st == KVS_OK ? kvs_buf_printf(out, "\n# TYPE %s %s\n", f->name, kinds[f->kind]) : st;
}

static kvs_status put_sample(struct kvs_buf *out, const char *name, const char *suffix, const char *labels,
                             const char *value)
{
    bool any = labels[0] != '\0';
    return kvs_buf_printf(out, "%s%s%s%s%s %s\n", name, suffix, any ? "{" : "", labels, any ? "}" : "", value);
}

static kvs_status put_histogram(struct kvs_buf *out, const char *name, const struct series *s)
{
    char text[64], le[64];
    uint64_t total = 0;
    kvs_status st = KVS_OK;
    const char *comma = s->labels[0] != '\0' ? "," : "";
    for (size_t i = 0; i <= s->bound_count && st == KVS_OK; i++) {
        total += atomic_load_explicit(&s->buckets[i], memory_order_relaxed);
        const char *edge = i < s->bound_count ? number(le, sizeof le, s->bounds[i]) : "+Inf";
        st = kvs_buf_printf(out, "%s_bucket{%s%sle=\"%s\"} %llu\n", name, s->labels, comma, edge,
                            (unsigned long long)total);
    }
    if (st == KVS_OK) {
        double sum = atomic_load_explicit(&s->value, memory_order_relaxed);
        st = put_sample(out, name, "_sum", s->labels, number(text, sizeof text, sum));
    }
    if (st == KVS_OK) {
        kvs_format(text, sizeof text, "%llu", (unsigned long long)total);
        st = put_sample(out, name, "_count", s->labels, text);
    }
    return st;
}

static kvs_status put_series(struct kvs_buf *out, const struct family *f, const struct series *s)
{
    char text[64];
    switch (f->kind) {
    case COUNTER:
        kvs_format(text, sizeof text, "%llu",
                   (unsigned long long)atomic_load_explicit(&s->count, memory_order_relaxed));
        return put_sample(out, f->name, "", s->labels, text);
    case GAUGE: {
        double v = atomic_load_explicit(&s->value, memory_order_relaxed);
        return put_sample(out, f->name, "", s->labels, number(text, sizeof text, v));
    }
    case HISTOGRAM: return put_histogram(out, f->name, s);
    }
    return KVS_SELF_INTERNAL;
}

kvs_status kvs_metrics_write(const struct kvs_metrics *m, struct kvs_buf *out)
{
    kvs_status st = KVS_OK;
    pthread_mutex_lock(m->lock);
    for (const struct family *f = m->first; f != NULL && st == KVS_OK; f = f->next) {
        if (f->first == NULL) {
            continue;
        }
        st = put_help(out, f);
        for (const struct series *s = f->first; s != NULL && st == KVS_OK; s = s->next) {
            st = put_series(out, f, s);
        }
    }
    pthread_mutex_unlock(m->lock);
    return st;
}
