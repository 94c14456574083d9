/* filters_seq.c - filters over a sequence: map, select and their kind, sort, unique, join, first, last, sum, ...
 * What Python makes lazily (map, select, ...) is made at once here; it prints and indexes as a generator would, that is, not.
 * Sorting is a stable merge sort whose comparisons are charged one by one.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include <string.h>

static bool flag_arg(const struct jin_args *a, size_t n, const char *name)
{
    const struct jin_value *v = jin_arg(a, n, name);
    return v != NULL && jin_truthy(v);
}

bool jin_join(struct jin_run *r, const struct jin_value *items, size_t count, struct mdl_str with,
              struct jin_value *out)
{
    size_t mark = r->out->len;
    for (size_t i = 0; i < count; i++) {
        if ((i > 0 && !jin_put(r, with.data, with.len)) || !jin_put_value(r, &items[i]) || !jin_step(r, 1))
            return false;
    }
    return jin_captured(r, mark, out);
}

/* The attribute of each element, when one is asked for. */
static bool attributes(struct jin_run *r, const struct jin_value *path, const struct jin_value **items, size_t count)
{
    struct jin_value list;
    if (path == NULL || path->type == JIN_NONE)
        return true;
    if (!jin_list_new(r, count, JIN_A_LIST, &list))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!jin_path(r, &(*items)[i], path, &list.u.list->items[i]))
            return false;
    }
    *items = list.u.list->items;
    return true;
}

static bool f_join(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"d", "attribute"};
    const struct jin_value *items, *d = jin_arg(a, 0, "d");
    struct jin_value with = jin_text("");
    size_t count;
    return jin_take(r, "join", a, 2, names) && (d == NULL || jin_to_str(r, d, &with)) &&
           jin_iterate(r, v, &items, &count) && attributes(r, jin_arg(a, 1, "attribute"), &items, count) &&
           jin_join(r, items, count, jin_view(&with), out);
}

static bool f_ends(struct jin_run *r, const struct jin_value *v, bool last, struct jin_value *out)
{
    const struct jin_value *items;
    size_t count;
    if (last && v->type == JIN_LIST && v->u.list->kind == JIN_ONCE)
        return jin_fail(r, "'generator' object is not reversible");
    if (!jin_iterate(r, v, &items, &count))
        return false;
    if (count == 0)
        return jin_undefined_text(r, last ? "No last item, sequence was empty." : "No first item, sequence was empty.",
                                  out);
    *out = items[last ? count - 1 : 0];
    return true;
}

static bool f_list(struct jin_run *r, const struct jin_value *v, bool backwards, struct jin_value *out)
{
    const struct jin_value *items;
    size_t count;
    if (!jin_iterate(r, v, &items, &count) || !jin_list_new(r, count, backwards ? JIN_ONCE : JIN_A_LIST, out))
        return false;
    for (size_t i = 0; i < count; i++)
        out->u.list->items[i] = items[backwards ? count - 1 - i : i];
    if (!backwards || v->type != JIN_STR)
        return true;
    return jin_join(r, out->u.list->items, count, (struct mdl_str){"", 0}, out);
}

static bool f_items(struct jin_run *r, const struct jin_value *v, struct jin_value *out)
{
    if (v->type == JIN_UNDEFINED)
        return jin_list_new(r, 0, JIN_ONCE, out);
    if (v->type != JIN_DICT)
        return jin_fail(r, "Can only get item pairs from a mapping.");
    return jin_dict_view(r, v->u.dict, JIN_ONCE, out);
}

/* ---- order ---- */

/* Letter case does not count, unless asked for. */
static bool fold(struct jin_run *r, const struct jin_value *items, size_t count, bool case_sensitive,
                 const struct jin_value **out)
{
    struct jin_value list;
    *out = items;
    if (case_sensitive)
        return true;
    if (!jin_list_new(r, count, JIN_A_LIST, &list))
        return false;
    for (size_t i = 0; i < count; i++) {
        list.u.list->items[i] = items[i];
        if (items[i].type == JIN_STR && !jin_change_case(r, jin_view(&items[i]), 'l', &list.u.list->items[i]))
            return false;
    }
    *out = list.u.list->items;
    return true;
}

/* Indices in the order of their keys; equal ones stay in place, also when reversed. */
static bool order(struct jin_run *r, const struct jin_value *keys, size_t count, bool reverse, uint32_t **out)
{
    uint32_t *from = jin_alloc(r, count, sizeof *from), *to = jin_alloc(r, count, sizeof *to);
    if (from == NULL || to == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        from[i] = (uint32_t)i;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t low = 0; low < count; low += 2 * width) {
            size_t mid = low + width < count ? low + width : count, high = mid + width < count ? mid + width : count;
            size_t i = low, k = mid;
            for (size_t at = low; at < high; at++) {
                bool second = i >= mid;
                if (i < mid && k < high) {
                    const struct jin_value *x = &keys[from[i]], *y = &keys[from[k]];
                    if (!jin_step(r, 1) || !jin_order(r, reverse ? x : y, reverse ? y : x, JIN_LT, &second))
                        return false;
                }
                to[at] = second ? from[k++] : from[i++];
            }
        }
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    *out = from;
    return true;
}

static bool f_sort(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"reverse", "case_sensitive", "attribute"};
    const struct jin_value *items, *keys;
    uint32_t *places;
    size_t count;
    if (!jin_take(r, "sort", a, 3, names) || !jin_iterate(r, v, &items, &count))
        return false;
    keys = items;
    if (!attributes(r, jin_arg(a, 2, "attribute"), &keys, count) ||
        !fold(r, keys, count, flag_arg(a, 1, "case_sensitive"), &keys) ||
        !order(r, keys, count, flag_arg(a, 0, "reverse"), &places) || !jin_list_new(r, count, JIN_A_LIST, out))
        return false;
    for (size_t i = 0; i < count; i++)
        out->u.list->items[i] = items[places[i]];
    return true;
}

static bool f_dictsort(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"case_sensitive", "by", "reverse"};
    const struct jin_value *by = jin_arg(a, 1, "by"), *keys;
    struct jin_value pairs, list;
    uint32_t *places;
    if (!jin_take(r, "dictsort", a, 3, names))
        return false;
    if (v->type != JIN_DICT)
        return v->type == JIN_UNDEFINED ? jin_fail_undefined(r, v)
                                        : jin_fail(r, "dictsort needs a dict, not %s", jin_type_name(v));
    if (by != NULL && (by->type != JIN_STR || !(jin_is(jin_view(by), "key") || jin_is(jin_view(by), "value"))))
        return jin_fail(r, "You can only sort by either \"key\" or \"value\"");
    bool value = by != NULL && jin_is(jin_view(by), "value");
    size_t count = v->u.dict->count;
    if (!jin_dict_view(r, v->u.dict, JIN_ITEMS, &pairs) ||
        !jin_dict_view(r, v->u.dict, value ? JIN_VALUES : JIN_KEYS, &list) ||
        !fold(r, list.u.list->items, count, flag_arg(a, 0, "case_sensitive"), &keys) ||
        !order(r, keys, count, flag_arg(a, 2, "reverse"), &places) || !jin_list_new(r, count, JIN_A_LIST, out))
        return false;
    for (size_t i = 0; i < count; i++)
        out->u.list->items[i] = pairs.u.list->items[places[i]];
    return true;
}

static bool f_unique(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    const struct jin_value *items, *keys;
    struct jin_value seen;
    size_t count, k = 0;
    if (!jin_take(r, "unique", a, 2, names) || !jin_iterate(r, v, &items, &count))
        return false;
    keys = items;
    if (!attributes(r, jin_arg(a, 1, "attribute"), &keys, count) ||
        !fold(r, keys, count, flag_arg(a, 0, "case_sensitive"), &keys) || !jin_list_new(r, count, JIN_A_LIST, &seen) ||
        !jin_list_new(r, count, JIN_ONCE, out))
        return false;
    for (size_t i = 0; i < count; i++) {
        bool same = false;
        for (size_t j = 0; j < k && !same; j++) {
            if (!jin_equal(r, &seen.u.list->items[j], &keys[i], &same))
                return false;
        }
        if (!same) {
            seen.u.list->items[k] = keys[i];
            out->u.list->items[k++] = items[i];
        }
    }
    out->u.list->count = k;
    return true;
}

static bool f_extreme(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, bool max,
                      struct jin_value *out)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    const struct jin_value *items, *keys;
    size_t count, best = 0;
    if (!jin_take(r, max ? "max" : "min", a, 2, names) || !jin_iterate(r, v, &items, &count))
        return false;
    if (count == 0)
        return jin_undefined_text(r, "No aggregated item, sequence was empty.", out);
    keys = items;
    if (!attributes(r, jin_arg(a, 1, "attribute"), &keys, count) ||
        !fold(r, keys, count, flag_arg(a, 0, "case_sensitive"), &keys))
        return false;
    for (size_t i = 1; i < count; i++) {
        bool better;
        if (!jin_order(r, &keys[i], &keys[best], max ? JIN_GT : JIN_LT, &better))
            return false;
        best = better ? i : best;
    }
    *out = items[best];
    return true;
}

static bool f_sum(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"attribute", "start"};
    const struct jin_value *items, *start = jin_arg(a, 1, "start");
    struct jin_value total = start != NULL ? *start : jin_int(0);
    size_t count;
    if (!jin_take(r, "sum", a, 2, names) || !jin_iterate(r, v, &items, &count) ||
        !attributes(r, jin_arg(a, 0, "attribute"), &items, count))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (items[i].type == JIN_STR)
            return jin_fail(r, "unsupported operand type(s) for +: 'int' and 'str'");
        if (!jin_add(r, &total, &items[i], &total))
            return false;
    }
    *out = total;
    return true;
}

/* ---- map, select, reject, selectattr, rejectattr ---- */

/* The arguments after the first `skip`. */
static struct jin_args rest(const struct jin_args *a, size_t skip)
{
    struct jin_args b = *a;
    if (skip > 0) { /* without arguments there is no array to step along */
        b.values += skip;
        b.count -= skip;
    }
    return b;
}

/* What is false has no elements, whatever it is. */
static bool elements(struct jin_run *r, const struct jin_value *v, const struct jin_value **items, size_t *count)
{
    *items = NULL;
    *count = 0;
    return !jin_truthy(v) || jin_iterate(r, v, items, count);
}

static bool f_map(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"attribute", "default"};
    const struct jin_value *items;
    size_t count;
    if (!elements(r, v, &items, &count) || !jin_list_new(r, count, JIN_ONCE, out))
        return false;
    struct jin_value *to = out->u.list->items;
    if (a->count == 0) {
        const struct jin_value *path = jin_arg(a, 0, "attribute"), *otherwise = jin_arg(a, 1, "default");
        if (path == NULL)
            return jin_fail(r, "map requires a filter argument");
        if (!jin_take(r, "map", a, 2, names))
            return false;
        for (size_t i = 0; i < count; i++) {
            if (!jin_path(r, &items[i], path, &to[i]))
                return false;
            if (to[i].type == JIN_UNDEFINED && otherwise != NULL)
                to[i] = *otherwise;
        }
        return true;
    }
    if (a->values[0].type != JIN_STR)
        return jin_fail(r, "map needs a filter's name");
    struct jin_args more = rest(a, 1);
    for (size_t i = 0; i < count; i++) {
        if (!jin_enter(r))
            return false;
        bool ok = jin_filter(r, jin_view(&a->values[0]), &items[i], &more, &to[i]);
        jin_leave(r);
        if (!ok)
            return false;
    }
    return true;
}

static bool f_select(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, bool want, bool attr,
                     struct jin_value *out)
{
    const struct jin_value *items;
    size_t count, k = 0, skip = attr ? 1 : 0;
    if (!elements(r, v, &items, &count) || !jin_list_new(r, count, JIN_ONCE, out))
        return false;
    if (a->count < skip)
        return jin_fail(r, "Missing parameter for attribute name");
    bool tested = a->count > skip;
    if (tested && a->values[skip].type != JIN_STR)
        return jin_fail(r, "a test's name is needed");
    struct jin_args more = rest(a, tested ? skip + 1 : skip);
    for (size_t i = 0; i < count; i++) {
        struct jin_value one = items[i];
        bool holds;
        if (!jin_step(r, 1) || (attr && !jin_path(r, &items[i], &a->values[0], &one)))
            return false;
        if (!tested)
            holds = jin_truthy(&one);
        else if (!jin_test(r, jin_view(&a->values[skip]), &one, &more, &holds))
            return false;
        if (holds == want)
            out->u.list->items[k++] = items[i];
    }
    out->u.list->count = k;
    return true;
}

bool jin_filter_seq(struct jin_run *r, struct mdl_str name, const struct jin_value *v, const struct jin_args *a,
                    struct jin_value *out, bool *found)
{
    *found = true;
    if (jin_is(name, "join"))
        return f_join(r, v, a, out);
    if (jin_is(name, "map"))
        return f_map(r, v, a, out);
    if (jin_is(name, "select") || jin_is(name, "reject"))
        return f_select(r, v, a, name.data[0] == 's', false, out);
    if (jin_is(name, "selectattr") || jin_is(name, "rejectattr"))
        return f_select(r, v, a, name.data[0] == 's', true, out);
    if (jin_is(name, "sort"))
        return f_sort(r, v, a, out);
    if (jin_is(name, "dictsort"))
        return f_dictsort(r, v, a, out);
    if (jin_is(name, "unique"))
        return f_unique(r, v, a, out);
    if (jin_is(name, "min") || jin_is(name, "max"))
        return f_extreme(r, v, a, name.data[1] == 'a', out);
    if (jin_is(name, "sum"))
        return f_sum(r, v, a, out);
    bool length = jin_is(name, "length") || jin_is(name, "count");
    *found = length || jin_is(name, "first") || jin_is(name, "last") || jin_is(name, "list") ||
             jin_is(name, "reverse") || jin_is(name, "items");
    if (*found && a->count + a->named > 0)
        return jin_fail(r, "%.*s takes no arguments", (int)name.len, name.data);
    if (length) {
        int64_t n;
        if (!jin_length(r, v, &n))
            return false;
        *out = jin_int(n);
    }
    if (jin_is(name, "first") || jin_is(name, "last"))
        return f_ends(r, v, name.data[0] == 'l', out);
    if (jin_is(name, "list") || jin_is(name, "reverse"))
        return f_list(r, v, name.data[0] == 'r', out);
    return !jin_is(name, "items") || f_items(r, v, out);
}
