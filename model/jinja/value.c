/* value.c - the run's bookkeeping (budget, memory, errors) and the values that a template computes with.
 * A dict is an array of pairs in order of insertion, searched from the front: messages have few keys. A search is charged by
 * the pairs it looks at, so a large dict costs its asker, not the server.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include <string.h>

bool jin_fail(struct jin_run *r, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    kvs_vformat(text, sizeof text, fmt, args);
    va_end(args);
    if (r->status == KVS_OK)
        r->status = kvs_fail(r->err, KVS_REQ_INVALID, "chat template: line %u: %s", (unsigned int)r->line, text);
    return false;
}

bool jin_next_slice(struct jin_run *r, uint64_t n)
{
    uint64_t total = r->steps_left + r->steps_after;
    bool late = total >= n && r->expired && r->expired(r->expired_user);
    if (total >= n && !late) {
        total -= n;
        r->steps_left = total < JIN_SLICE ? total : JIN_SLICE;
        r->steps_after = total - r->steps_left;
        return true;
    }
    if (r->status == KVS_OK) /* too many steps are the request's fault; too little time need not be */
        r->status = kvs_fail(r->err, late ? KVS_REQ_DEADLINE : KVS_REQ_INVALID, "chat template: %s limit reached (line %u)",
                             late ? "time" : "step", (unsigned int)r->line);
    r->steps_left = r->steps_after = 0;
    return false;
}

bool jin_enter(struct jin_run *r)
{
    if (r->depth >= JIN_DEPTH)
        return jin_fail(r, "nested too deeply, or a macro calls itself without end");
    r->depth++;
    return jin_step(r, 1);
}

void *jin_alloc(struct jin_run *r, size_t count, size_t size)
{
    size_t left = r->arena.max - r->arena.used;
    if (count > left / size || count * size + 16 > left) {
        (void)jin_fail(r, "memory limit reached");
        return NULL;
    }
    if (!jin_step(r, count * size / 128))
        return NULL;
    void *p = kvs_arena_array(&r->arena, count, size);
    if (p == NULL && r->status == KVS_OK)
        r->status = kvs_fail(r->err, KVS_SELF_NOMEM, "no memory for the rendered chat");
    return p;
}

bool jin_put(struct jin_run *r, const void *bytes, size_t n)
{
    if (!jin_step(r, n / 128))
        return false;
    kvs_status s = kvs_buf_append(r->out, bytes, n);
    if (s == KVS_OK)
        return true;
    if (r->status == KVS_OK && s == KVS_BUSY_FULL)
        r->status = kvs_fail(r->err, KVS_REQ_TOO_LONG, "the rendered chat is longer than %zu bytes", r->out->max);
    else if (r->status == KVS_OK)
        r->status = kvs_fail(r->err, s, "no memory for the rendered chat");
    return false;
}

bool jin_puts(struct jin_run *r, const char *text)
{
    return jin_put(r, text, strlen(text));
}

bool jin_captured(struct jin_run *r, size_t mark, struct jin_value *out)
{
    KVS_ASSERT(mark <= r->out->len);
    size_t n = r->out->len - mark;
    char *copy = jin_alloc(r, n + 1, 1);
    if (copy == NULL)
        return false;
    if (n > 0)
        memcpy(copy, r->out->data + mark, n);
    r->out->len = mark;
    if (r->out->data != NULL)
        r->out->data[mark] = 0;
    *out = jin_str(copy, n);
    return true;
}

struct jin_value jin_text(const char *text)
{
    return jin_str(text, strlen(text));
}

bool jin_is(struct mdl_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

const char *jin_type_name(const struct jin_value *v)
{
    static const char *const lists[] = {"list", "tuple", "dict_items", "dict_keys", "dict_values", "generator"};
    switch ((jin_type)v->type) {
    case JIN_UNDEFINED: return "Undefined";
    case JIN_NONE: return "NoneType";
    case JIN_BOOL: return "bool";
    case JIN_INT: return "int";
    case JIN_FLOAT: return "float";
    case JIN_STR: return v->markup ? "Markup" : "str";
    case JIN_LIST: return lists[v->u.list->kind];
    case JIN_DICT: return "dict";
    case JIN_RANGE: return "range";
    case JIN_NAMESPACE: return "Namespace";
    case JIN_MACRO: return "Macro";
    case JIN_FUNCTION: return "function";
    case JIN_METHOD: return "method";
    case JIN_LOOP: return "LoopContext";
    }
    return "object";
}

/* ---- undefined ---- */

static bool undefined(struct jin_run *r, const struct jin_undef *why, struct jin_value *out)
{
    struct jin_undef *u = jin_alloc(r, 1, sizeof *u);
    if (u == NULL)
        return false;
    *u = *why;
    *out = (struct jin_value){.type = JIN_UNDEFINED, .u.undef = u};
    return true;
}

bool jin_undefined_name(struct jin_run *r, struct mdl_str name, struct jin_value *out)
{
    return undefined(r, &(struct jin_undef){.name = jin_str(name.data, name.len)}, out);
}

bool jin_undefined_of(struct jin_run *r, const struct jin_value *owner, const struct jin_value *name,
                      struct jin_value *out)
{
    return undefined(r, &(struct jin_undef){.owner = jin_type_name(owner), .name = *name}, out);
}

bool jin_undefined_text(struct jin_run *r, const char *message, struct jin_value *out)
{
    return undefined(r, &(struct jin_undef){.name = jin_text(message), .message = true}, out);
}

bool jin_fail_undefined(struct jin_run *r, const struct jin_value *v)
{
    const struct jin_undef *u = v->u.undef;
    int n = u->name.type == JIN_STR ? (int)(u->name.len < 150 ? u->name.len : 150) : 0;
    if (u->message)
        return jin_fail(r, "%.*s", n, u->name.u.text);
    if (u->owner == NULL)
        return jin_fail(r, "'%.*s' is undefined", n, u->name.u.text);
    if (u->name.type == JIN_STR)
        return jin_fail(r, "'%s object' has no attribute '%.*s'", u->owner, n, u->name.u.text);
    if (u->name.type == JIN_INT)
        return jin_fail(r, "'%s object' has no element %lld", u->owner, (long long)u->name.u.i);
    return jin_fail(r, "'%s object' has no such element", u->owner);
}

/* ---- lists and dicts ---- */

bool jin_list_new(struct jin_run *r, size_t count, jin_list_kind kind, struct jin_value *out)
{
    struct jin_list *l = jin_alloc(r, 1, sizeof *l);
    if (l == NULL)
        return false;
    l->kind = kind;
    l->count = count;
    if (count > 0 && (l->items = jin_alloc(r, count, sizeof *l->items)) == NULL)
        return false;
    *out = (struct jin_value){.type = JIN_LIST, .u.list = l};
    return true;
}

bool jin_dict_new(struct jin_run *r, struct jin_value *out)
{
    struct jin_dict *d = jin_alloc(r, 1, sizeof *d);
    if (d == NULL)
        return false;
    *out = (struct jin_value){.type = JIN_DICT, .u.dict = d};
    return true;
}

bool jin_dict_find(struct jin_run *r, const struct jin_dict *d, const struct jin_value *key, struct jin_value **out)
{
    bool same = false;
    *out = NULL;
    if (!jin_step(r, d->count / 8))
        return false;
    for (size_t i = 0; i < d->count; i++) {
        struct jin_pair *p = &d->pairs[i];
        if (p->key.type == JIN_STR && key->type == JIN_STR)
            same = jin_same(jin_view(&p->key), jin_view(key));
        else if (!jin_equal(r, &p->key, key, &same))
            return false;
        if (same) {
            *out = &p->value;
            return true;
        }
    }
    return true;
}

bool jin_dict_set(struct jin_run *r, struct jin_dict *d, const struct jin_value *key, const struct jin_value *value)
{
    struct jin_value *there;
    if (!jin_dict_find(r, d, key, &there))
        return false;
    if (there != NULL) {
        *there = *value;
        return true;
    }
    if (d->count == d->cap) {
        size_t cap = d->cap == 0 ? 4 : d->cap * 2;
        struct jin_pair *more = jin_alloc(r, cap, sizeof *more);
        if (more == NULL)
            return false;
        if (d->count > 0)
            memcpy(more, d->pairs, d->count * sizeof *more);
        d->pairs = more;
        d->cap = cap;
    }
    d->pairs[d->count++] = (struct jin_pair){*key, *value};
    return true;
}

/* Keys, values or (key, value) tuples. */
bool jin_dict_view(struct jin_run *r, const struct jin_dict *d, jin_list_kind kind, struct jin_value *out)
{
    if (!jin_list_new(r, d->count, kind, out))
        return false;
    for (size_t i = 0; i < d->count; i++) {
        struct jin_value *to = &out->u.list->items[i];
        if (kind != JIN_ITEMS && kind != JIN_ONCE) {
            *to = kind == JIN_KEYS ? d->pairs[i].key : d->pairs[i].value;
            continue;
        }
        if (!jin_list_new(r, 2, JIN_A_TUPLE, to))
            return false;
        to->u.list->items[0] = d->pairs[i].key;
        to->u.list->items[1] = d->pairs[i].value;
    }
    return true;
}

bool jin_truthy(const struct jin_value *v)
{
    switch ((jin_type)v->type) {
    case JIN_UNDEFINED:
    case JIN_NONE: return false;
    case JIN_BOOL: return v->u.b;
    case JIN_INT: return v->u.i != 0;
    case JIN_FLOAT: return v->u.f != 0;
    case JIN_STR: return v->len > 0;
    case JIN_LIST: return v->u.list->count > 0 || v->u.list->kind == JIN_ONCE;
    case JIN_DICT: return v->u.dict->count > 0;
    case JIN_RANGE: return v->u.range->count > 0;
    default: return true;
    }
}

bool jin_iterable(const struct jin_value *v)
{
    switch ((jin_type)v->type) {
    case JIN_UNDEFINED:
    case JIN_STR:
    case JIN_LIST:
    case JIN_DICT:
    case JIN_LOOP:
    case JIN_RANGE: return true;
    default: return false;
    }
}

static bool characters(struct jin_run *r, struct mdl_str s, struct jin_value *out)
{
    if (!jin_list_new(r, jin_count_chars(s), JIN_A_LIST, out))
        return false;
    for (size_t i = 0; i < out->u.list->count; i++) {
        size_t n = jin_char(s.data, s.len, NULL);
        out->u.list->items[i] = jin_str(s.data, n);
        s = (struct mdl_str){s.data + n, s.len - n};
    }
    return true;
}

bool jin_iterate(struct jin_run *r, const struct jin_value *v, const struct jin_value **items_out, size_t *count_out)
{
    struct jin_value list = *v;
    *count_out = 0;
    *items_out = NULL;
    switch ((jin_type)v->type) {
    case JIN_UNDEFINED: return true;
    case JIN_LIST:
        if (v->u.list->spent)
            return true;
        v->u.list->spent = v->u.list->kind == JIN_ONCE;
        break;
    case JIN_STR:
        if (!characters(r, jin_view(v), &list))
            return false;
        break;
    case JIN_DICT:
        if (!jin_dict_view(r, v->u.dict, JIN_KEYS, &list))
            return false;
        break;
    case JIN_RANGE:
        if (!jin_list_new(r, v->u.range->count, JIN_A_LIST, &list))
            return false;
        for (size_t i = 0; i < v->u.range->count; i++)
            list.u.list->items[i] = jin_int(v->u.range->start + (int64_t)i * v->u.range->step);
        break;
    default: return jin_fail(r, "'%s' object is not iterable", jin_type_name(v));
    }
    *items_out = list.u.list->items;
    *count_out = list.u.list->count;
    return jin_step(r, *count_out / 8);
}

bool jin_length(struct jin_run *r, const struct jin_value *v, int64_t *out)
{
    switch ((jin_type)v->type) {
    case JIN_UNDEFINED: *out = 0; return true;
    case JIN_STR: *out = (int64_t)jin_count_chars(jin_view(v)); return jin_step(r, v->len / 32);
    case JIN_DICT: *out = (int64_t)v->u.dict->count; return true;
    case JIN_RANGE: *out = (int64_t)v->u.range->count; return true;
    case JIN_LIST:
        if (v->u.list->kind == JIN_ONCE)
            break;
        *out = (int64_t)v->u.list->count;
        return true;
    case JIN_LOOP: *out = (int64_t)v->u.loop->count; return true;
    default: break;
    }
    return jin_fail(r, "object of type '%s' has no len()", jin_type_name(v));
}
