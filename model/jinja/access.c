/* access.c - v.name, v[key] and v[a:b:c].
 * As in Jinja2, v.name looks for a method first and then for the key, v[key] the other way round; whatever is not there is an
 * undefined value that remembers what was asked. Methods that would change a list or dict are refused, as in its sandbox.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include <string.h>

static bool loop_field(struct jin_run *r, const struct jin_value *v, struct mdl_str name, struct jin_value *out)
{
    const struct jin_loop *l = v->u.loop;
    int64_t i = (int64_t)l->index, n = (int64_t)l->count;
    const struct {
        const char *name;
        struct jin_value value;
    } fields[] = {
        {"index", jin_int(i + 1)},    {"index0", jin_int(i)},
        {"revindex", jin_int(n - i)}, {"revindex0", jin_int(n - i - 1)},
        {"first", jin_bool(i == 0)},  {"last", jin_bool(i == n - 1)},
        {"length", jin_int(n)},       {"depth", jin_int(1)},
        {"depth0", jin_int(0)}, /* loops are never recursive here */
    };
    for (size_t k = 0; k < sizeof fields / sizeof fields[0]; k++) {
        if (jin_is(name, fields[k].name)) {
            *out = fields[k].value;
            return true;
        }
    }
    if (jin_is(name, "previtem") || jin_is(name, "nextitem")) {
        bool previous = name.data[0] == 'p';
        if (previous ? i == 0 : i == n - 1)
            return jin_undefined_text(r, previous ? "there is no previous item" : "there is no next item", out);
        *out = l->items[previous ? i - 1 : i + 1];
        return true;
    }
    struct jin_value key = jin_str(name.data, name.len);
    return jin_undefined_of(r, v, &key, out);
}

static bool method(struct jin_run *r, const struct jin_value *v, struct mdl_str name, bool *found,
                   struct jin_value *out)
{
    bool safe;
    *found = jin_has_method(v, name, &safe);
    if (!*found)
        return true;
    if (!safe)
        return jin_undefined_text(r, "access to a method that changes its object is not allowed", out);
    struct jin_method *m = jin_alloc(r, 1, sizeof *m);
    if (m == NULL)
        return false;
    m->self = *v;
    m->name = name;
    *out = (struct jin_value){.type = JIN_METHOD, .u.method = m};
    return true;
}

static bool key_of(struct jin_run *r, const struct jin_value *v, const struct jin_value *key, bool *found,
                   struct jin_value *out)
{
    struct jin_value *there = NULL;
    *found = false;
    if ((v->type != JIN_DICT && v->type != JIN_NAMESPACE) || key->type == JIN_LIST || key->type == JIN_DICT)
        return true;
    if (!jin_dict_find(r, v->u.dict, key, &there))
        return false;
    if (there != NULL) {
        *found = true;
        *out = *there;
    }
    return true;
}

bool jin_attribute(struct jin_run *r, const struct jin_value *v, struct mdl_str name, struct jin_value *out)
{
    struct jin_value key = jin_str(name.data, name.len);
    bool found;
    if (v->type == JIN_UNDEFINED)
        return jin_fail_undefined(r, v);
    if (v->type == JIN_LOOP && !jin_is(name, "cycle") && !jin_is(name, "changed"))
        return loop_field(r, v, name, out);
    if (!method(r, v, name, &found, out))
        return false;
    if (!found && !key_of(r, v, &key, &found, out))
        return false;
    return found || jin_undefined_of(r, v, &key, out);
}

/* An index from the front or, below zero, from the back; false: outside. */
static bool place(int64_t i, size_t count, size_t *out)
{
    int64_t n = (int64_t)count;
    i = i < 0 ? i + n : i;
    *out = (size_t)i;
    return i >= 0 && i < n;
}

static bool element(struct jin_run *r, const struct jin_value *v, int64_t i, bool *found, struct jin_value *out)
{
    size_t at;
    *found = false;
    if (v->type == JIN_STR) {
        struct mdl_str s = jin_view(v);
        if (!jin_step(r, s.len / 32))
            return false;
        *found = place(i, jin_count_chars(s), &at);
        if (*found) {
            size_t start = jin_offset(s, at);
            *out = jin_str(s.data + start, jin_char(s.data + start, s.len - start, NULL));
        }
    } else if (v->type == JIN_LIST && v->u.list->kind <= JIN_A_TUPLE) {
        *found = place(i, v->u.list->count, &at);
        if (*found)
            *out = v->u.list->items[at];
    } else if (v->type == JIN_RANGE) {
        *found = place(i, v->u.range->count, &at);
        if (*found)
            *out = jin_int(v->u.range->start + (int64_t)at * v->u.range->step);
    }
    return true;
}

bool jin_item(struct jin_run *r, const struct jin_value *v, const struct jin_value *key, struct jin_value *out)
{
    bool found = false;
    if (v->type == JIN_UNDEFINED)
        return jin_fail_undefined(r, v);
    if (v->type == JIN_DICT) {
        if (!key_of(r, v, key, &found, out))
            return false;
    } else if (jin_is_whole(key) && !element(r, v, jin_whole(key), &found, out)) {
        return false;
    }
    if (found)
        return true;
    return key->type == JIN_STR ? jin_attribute(r, v, jin_view(key), out) : jin_undefined_of(r, v, key, out);
}

/* Python's slice.indices(): first index, step and how many. */
static bool slice_range(struct jin_run *r, const struct jin_value b[3], size_t count, struct jin_range *out)
{
    int64_t n = (int64_t)count, bound[2];
    for (int i = 0; i < 3; i++) {
        if (b[i].type == JIN_UNDEFINED)
            return jin_fail_undefined(r, &b[i]);
        if (b[i].type != JIN_NONE && !jin_is_whole(&b[i]))
            return jin_fail(r, "slice indices must be integers or None");
    }
    int64_t step = b[2].type == JIN_NONE ? 1 : jin_whole(&b[2]);
    if (step == 0)
        return jin_fail(r, "slice step cannot be zero");
    step = step > n + 1 ? n + 1 : step < -n - 1 ? -n - 1 : step;
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    for (int i = 0; i < 2; i++) {
        if (b[i].type == JIN_NONE) {
            bound[i] = (step < 0) == (i == 0) ? high : low;
            continue;
        }
        int64_t v = jin_whole(&b[i]);
        v = v < 0 ? v + n : v;
        bound[i] = v < low ? low : v > high ? high : v;
    }
    int64_t span = step > 0 ? bound[1] - bound[0] : bound[0] - bound[1], by = step > 0 ? step : -step;
    *out = (struct jin_range){bound[0], bound[1], step, span > 0 ? (size_t)((span - 1) / by + 1) : 0};
    return true;
}

static bool slice_str(struct jin_run *r, const struct jin_value *v, const struct jin_value b[3], struct jin_value *out)
{
    struct mdl_str s = jin_view(v);
    struct jin_range g;
    if (!jin_step(r, s.len / 16) || !slice_range(r, b, jin_count_chars(s), &g))
        return false;
    if (g.count == 0) {
        *out = jin_text("");
    } else if (g.step == 1) {
        size_t start = jin_offset(s, (size_t)g.start);
        struct mdl_str rest = {s.data + start, s.len - start};
        *out = jin_str(rest.data, jin_offset(rest, g.count));
    } else {
        const struct jin_value *chars;
        size_t count, mark = r->out->len;
        if (!jin_iterate(r, v, &chars, &count))
            return false;
        for (size_t i = 0; i < g.count; i++) {
            if (!jin_put_value(r, &chars[g.start + (int64_t)i * g.step]))
                return false;
        }
        if (!jin_step(r, g.count / 8) || !jin_captured(r, mark, out))
            return false;
    }
    out->markup = v->markup;
    return true;
}

bool jin_slice(struct jin_run *r, const struct jin_value *v, const struct jin_value bounds[3], struct jin_value *out)
{
    struct jin_range g;
    const struct jin_value *items;
    size_t count;
    if (v->type == JIN_UNDEFINED)
        return jin_fail_undefined(r, v);
    if (v->type == JIN_STR)
        return slice_str(r, v, bounds, out);
    if (!(v->type == JIN_LIST && v->u.list->kind <= JIN_A_TUPLE) && v->type != JIN_RANGE)
        return jin_fail(r, "'%s' object cannot be sliced", jin_type_name(v));
    if (!jin_iterate(r, v, &items, &count) || !slice_range(r, bounds, count, &g) ||
        !jin_list_new(r, g.count, v->type == JIN_LIST ? v->u.list->kind : JIN_A_LIST, out))
        return false;
    for (size_t i = 0; i < g.count; i++)
        out->u.list->items[i] = items[g.start + (int64_t)i * g.step];
    return true;
}

/* The path of map(attribute=...) and its kind: names and indices with dots between. */
bool jin_path(struct jin_run *r, const struct jin_value *v, const struct jin_value *path, struct jin_value *out)
{
    struct jin_value at = *v;
    if (path->type != JIN_STR)
        return jin_item(r, v, path, out);
    struct mdl_str s = jin_view(path);
    for (size_t from = 0; from <= s.len;) {
        size_t to = from;
        int64_t index = 0;
        bool number = true;
        for (; to < s.len && s.data[to] != '.'; to++) {
            number = number && s.data[to] >= '0' && s.data[to] <= '9' && to - from < 9;
            index = number ? index * 10 + (s.data[to] - '0') : 0;
        }
        struct jin_value key = number && to > from ? jin_int(index) : jin_str(s.data + from, to - from);
        if (!jin_step(r, 1) || !jin_item(r, &at, &key, &at))
            return false;
        from = to + 1;
    }
    *out = at;
    return true;
}
