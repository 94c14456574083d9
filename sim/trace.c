/* trace.c - notes of what happened, and the story of a failure.
 * Notes are kept as text and numbers in a ring and are put into words only when somebody reads them; all of them go into the trace hash.
 * A failure is about a request or about a page (sim_about_*). Its story is what names that request, the transfers that were made for it and the
 * pages concerned, and what was done meanwhile to the processes that had to do with it; everything else is left out. `--trace` prints all.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTES 65536u
#define LAST_PRINTED 160u   /* of a failure that is about nothing in particular */
#define STORY_PRINTED 300u
#define BEFORE_US 3000000u /* faults so long before the first word about it may be the cause */
#define NAMES_MAX 64u

void sim_notes_create(struct sim *s)
{
    s->notes = calloc(NOTES, sizeof *s->notes);
    KVS_ASSERT(s->notes != NULL);
}

void sim_notes_free(struct sim *s)
{
    free(s->notes);
}

void sim_about_request(struct sim *s, uint64_t request)
{
    if (!s->failed)
        s->about.request = request;
}

void sim_about_page(struct sim *s, uint32_t node, uint32_t group, uint32_t page)
{
    if (s->failed)
        return;
    s->about.node = node;
    s->about.page = SIM_PAGE(group, page);
}

/* --- words --- */

static size_t put_value(const struct sim *s, char kind, uint64_t v, char *out, size_t cap)
{
    switch (kind) {
    case 'x':
    case 't': return kvs_format(out, cap, "%llx", (unsigned long long)v);
    case 'n': return kvs_format(out, cap, "%s", v < s->node_count ? s->node[v].id : "nobody");
    case 's': return kvs_format(out, cap, "%s", kvs_status_name((kvs_status)v));
    case 'g': return kvs_format(out, cap, "%u of group %u", (unsigned)v, (unsigned)(v >> 32));
    default: return kvs_format(out, cap, "%llu", (unsigned long long)v);
    }
}

static void print_note(const struct sim *s, const struct sim_note *n)
{
    char line[320];
    const char *who = n->node < s->node_count ? s->node[n->node].id : "-";
    size_t cap = sizeof line;
    size_t len = kvs_format(line, cap, "%5llu.%06llu %-10s ", (unsigned long long)(n->at_us / 1000000), (unsigned long long)(n->at_us % 1000000), who);
    uint32_t next = 0;
    for (const char *p = n->text; *p != '\0' && len + 1 < cap; p++) {
        if (*p == '%' && next < 4) {
            len += put_value(s, *++p, n->arg[next++], line + len, cap - len);
        } else {
            line[len++] = *p;
            line[len] = '\0';
        }
    }
    puts(line);
}

void sim_note_at(struct sim *s, uint32_t node, const char *text, const uint64_t arg[4])
{
    struct sim_note *n = &s->notes[s->note_next++ % NOTES];
    *n = (struct sim_note){.at_us = s->now_us, .node = node, .text = text};
    memcpy(n->arg, arg, sizeof n->arg);
    uint64_t h = sim_mix(s->report.trace_hash, s->now_us);
    h = sim_mix(h, node);
    for (const char *p = text; *p != '\0'; p++)
        h = h * 31 + (unsigned char)*p;
    for (int i = 0; i < 4; i++)
        h = sim_mix(h, arg[i]);
    s->report.trace_hash = h;
    if (s->echo)
        print_note(s, n);
}

/* --- the story --- */

struct names {
    uint64_t value[NAMES_MAX];
    uint32_t count;
};

struct story {
    struct names requests, xfers, nodes;
    uint32_t page_node;
    uint64_t page, from_us;
};

static bool has(const struct names *n, uint64_t v)
{
    for (uint32_t i = 0; i < n->count; i++)
        if (n->value[i] == v)
            return true;
    return false;
}

static void add(struct names *n, uint64_t v)
{
    if (n->count < NAMES_MAX && v != 0 && !has(n, v))
        n->value[n->count++] = v;
}

/* Does this note name something of the story? With `learn` what else it names becomes part of it. */
static bool belongs(struct story *t, const struct sim_note *n, bool learn)
{
    bool ours = false;
    uint32_t next = 0;
    for (const char *p = n->text; *p != '\0' && next < 4; p++) {
        if (*p != '%')
            continue;
        uint64_t v = n->arg[next++];
        p++;
        ours = ours || (*p == 'r' && has(&t->requests, v)) || (*p == 't' && has(&t->xfers, v)) ||
               (*p == 'g' && n->node == t->page_node && v == t->page);
    }
    next = 0;
    for (const char *p = n->text; ours && learn && *p != '\0' && next < 4; p++) {
        if (*p != '%')
            continue;
        uint64_t v = n->arg[next++];
        p++;
        if (*p == 't')
            add(&t->xfers, v);
        else if (*p == 'r')
            add(&t->requests, v);
    }
    return ours;
}

static bool touches(const struct story *t, const struct sim_note *n)
{
    uint32_t next = 0;
    if (strstr(n->text, "%r") != NULL)
        return false; /* another request's */
    for (const char *p = n->text; *p != '\0' && next < 4; p++) {
        if (*p != '%')
            continue;
        uint64_t v = n->arg[next++];
        if (*++p == 'n' && has(&t->nodes, v + 1) && (n->node == SIM_NOBODY || has(&t->nodes, (uint64_t)n->node + 1)) && n->at_us >= t->from_us)
            return true;
    }
    return false;
}

static const struct sim_note *note_at(const struct sim *s, uint32_t i)
{
    return &s->notes[i % NOTES];
}

static void gather(const struct sim *s, struct story *t, uint32_t first)
{
    for (int pass = 0; pass < 3; pass++) /* page -> transfers -> requests; request -> transfers */
        for (uint32_t i = first; i != s->note_next; i++)
            (void)belongs(t, note_at(s, i), pass == 0 || t->page_node != SIM_NOBODY);
    for (uint32_t i = first; i != s->note_next; i++) {
        const struct sim_note *n = note_at(s, i);
        if (!belongs(t, n, false))
            continue;
        if (n->node != SIM_NOBODY)
            add(&t->nodes, (uint64_t)n->node + 1);
        uint64_t from = n->at_us > BEFORE_US ? n->at_us - BEFORE_US : 0;
        t->from_us = from < t->from_us ? from : t->from_us;
    }
}

void sim_print_story(const struct sim *s)
{
    struct story t = {.page_node = s->about.node, .page = s->about.page, .from_us = SIM_FOREVER};
    uint32_t first = s->note_next > NOTES ? s->note_next - NOTES : 0;
    bool about = s->about.request != 0 || s->about.node != SIM_NOBODY;
    if (!about && s->note_next - first > LAST_PRINTED)
        first = s->note_next - LAST_PRINTED;
    add(&t.requests, s->about.request);
    if (about)
        gather(s, &t, first);
    uint32_t count = 0;
    for (uint32_t i = first; i != s->note_next; i++)
        count += !about || belongs(&t, note_at(s, i), false) || touches(&t, note_at(s, i));
    if (s->about.request != 0)
        printf("what concerns request %llu:\n", (unsigned long long)s->about.request);
    else if (about)
        printf("what concerns page %u of group %u of %s:\n", (unsigned)t.page, (unsigned)(t.page >> 32), s->node[t.page_node].id);
    for (uint32_t i = first, k = 0; i != s->note_next; i++)
        if (!about || belongs(&t, note_at(s, i), false) || touches(&t, note_at(s, i)))
            if (count - k++ <= STORY_PRINTED)
                print_note(s, note_at(s, i));
}
