/* ops.c - comparison and arithmetic with Python's rules: true equals 1, "/" gives a float, "//" and "%" round down, strings
 * compare by code point (which in UTF-8 is by byte). Whole numbers have 64 bits; what does not fit is an error, never a wrap.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include <math.h>
#include <string.h>

static bool equal_lists(struct jin_run *r, const struct jin_list *a, const struct jin_list *b, bool *out)
{
    *out = a == b || (a->kind == b->kind && a->kind <= JIN_A_TUPLE && a->count == b->count);
    for (size_t i = 0; a != b && *out && i < a->count; i++) {
        if (!jin_equal(r, &a->items[i], &b->items[i], out))
            return false;
    }
    return true;
}

static bool equal_dicts(struct jin_run *r, const struct jin_dict *a, const struct jin_dict *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; a != b && *out && i < a->count; i++) {
        struct jin_value *other;
        /* Mostly the same keys in the same order. */
        if (a->pairs[i].key.type == JIN_STR && b->pairs[i].key.type == JIN_STR &&
            jin_same(jin_view(&a->pairs[i].key), jin_view(&b->pairs[i].key)))
            other = &b->pairs[i].value;
        else if (!jin_dict_find(r, b, &a->pairs[i].key, &other))
            return false;
        *out = other != NULL;
        if (other != NULL && !jin_equal(r, &a->pairs[i].value, other, out))
            return false;
    }
    return true;
}

static bool equal(struct jin_run *r, const struct jin_value *a, const struct jin_value *b, bool *out)
{
    if (jin_is_number(a) && jin_is_number(b)) {
        *out = jin_is_whole(a) && jin_is_whole(b) ? jin_whole(a) == jin_whole(b) : jin_real(a) == jin_real(b);
        return true;
    }
    *out = false;
    if (a->type != b->type)
        return true;
    switch ((jin_type)a->type) {
    case JIN_UNDEFINED:
    case JIN_NONE: *out = true; return true;
    case JIN_STR: *out = jin_same(jin_view(a), jin_view(b)); return jin_step(r, *out ? a->len / 128 : 0);
    case JIN_LIST: return equal_lists(r, a->u.list, b->u.list, out);
    case JIN_DICT: return equal_dicts(r, a->u.dict, b->u.dict, out);
    case JIN_RANGE:
        *out = a->u.range->count == b->u.range->count && a->u.range->start == b->u.range->start &&
               a->u.range->step == b->u.range->step;
        return true;
    default: *out = memcmp(&a->u, &b->u, sizeof a->u) == 0; return true;
    }
}

bool jin_equal(struct jin_run *r, const struct jin_value *a, const struct jin_value *b, bool *out)
{
    if (!jin_enter(r))
        return false;
    bool ok = equal(r, a, b, out);
    jin_leave(r);
    return ok;
}

static bool holds(jin_op op, int c)
{
    return op == JIN_LT ? c < 0 : op == JIN_LE ? c <= 0 : op == JIN_GT ? c > 0 : c >= 0;
}

static bool order_real(jin_op op, double a, double b)
{
    return op == JIN_LT ? a < b : op == JIN_LE ? a <= b : op == JIN_GT ? a > b : a >= b;
}

/* By the first elements that differ, else by length. */
static bool order_lists(struct jin_run *r, const struct jin_list *a, const struct jin_list *b, jin_op op, bool *out)
{
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        bool same;
        if (!jin_equal(r, &a->items[i], &b->items[i], &same))
            return false;
        if (!same)
            return jin_order(r, &a->items[i], &b->items[i], op, out);
    }
    *out = holds(op, (a->count > b->count) - (a->count < b->count));
    return true;
}

bool jin_order(struct jin_run *r, const struct jin_value *a, const struct jin_value *b, jin_op op, bool *out)
{
    if (a->type == JIN_UNDEFINED || b->type == JIN_UNDEFINED)
        return jin_fail_undefined(r, a->type == JIN_UNDEFINED ? a : b);
    if (jin_is_whole(a) && jin_is_whole(b)) {
        *out = holds(op, (jin_whole(a) > jin_whole(b)) - (jin_whole(a) < jin_whole(b)));
        return true;
    }
    if (jin_is_number(a) && jin_is_number(b)) {
        *out = order_real(op, jin_real(a), jin_real(b));
        return true;
    }
    if (a->type == JIN_STR && b->type == JIN_STR) {
        size_t n = a->len < b->len ? a->len : b->len;
        int c = n > 0 ? memcmp(a->u.text, b->u.text, n) : 0;
        *out = holds(op, c != 0 ? c : (a->len > b->len) - (a->len < b->len));
        return jin_step(r, n / 128);
    }
    if (a->type == JIN_LIST && b->type == JIN_LIST && a->u.list->kind == b->u.list->kind &&
        a->u.list->kind <= JIN_A_TUPLE) {
        if (!jin_enter(r))
            return false;
        bool ok = order_lists(r, a->u.list, b->u.list, op, out);
        jin_leave(r);
        return ok;
    }
    return jin_fail(r, "'%s' and '%s' have no order", jin_type_name(a), jin_type_name(b));
}

bool jin_contains(struct jin_run *r, const struct jin_value *all, const struct jin_value *one, bool *out)
{
    const struct jin_value *items;
    struct jin_value *found;
    size_t count;
    *out = false;
    if (all->type == JIN_STR) {
        if (one->type != JIN_STR)
            return jin_fail(r, "'in <string>' requires string as left operand, not %s", jin_type_name(one));
        *out = one->len == 0 || (all->len > 0 && memmem(all->u.text, all->len, one->u.text, one->len) != NULL);
        return jin_step(r, all->len / 64);
    }
    if (all->type == JIN_DICT) {
        if (one->type == JIN_DICT || (one->type == JIN_LIST && one->u.list->kind == JIN_A_LIST))
            return jin_fail(r, "unhashable type: '%s'", jin_type_name(one));
        if (!jin_dict_find(r, all->u.dict, one, &found))
            return false;
        *out = found != NULL;
        return true;
    }
    if (!jin_iterable(all))
        return jin_fail(r, "argument of type '%s' is not iterable", jin_type_name(all));
    if (!jin_iterate(r, all, &items, &count))
        return false;
    for (size_t i = 0; i < count && !*out; i++) {
        if (!jin_equal(r, &items[i], one, out))
            return false;
    }
    return true;
}

bool jin_compare(struct jin_run *r, jin_op op, const struct jin_value *a, const struct jin_value *b, bool *out)
{
    bool ok;
    switch (op) {
    case JIN_EQ: return jin_equal(r, a, b, out);
    case JIN_NE:
        ok = jin_equal(r, a, b, out);
        *out = !*out;
        return ok;
    case JIN_IN: return jin_contains(r, b, a, out);
    case JIN_NOTIN:
        ok = jin_contains(r, b, a, out);
        *out = !*out;
        return ok;
    default: return jin_order(r, a, b, op, out);
    }
}

/* ---- arithmetic ---- */

static bool overflow(struct jin_run *r)
{
    return jin_fail(r, "a whole number is larger than 64 bits");
}

bool jin_escape(struct jin_run *r, const struct jin_value *v, struct jin_value *out)
{
    static const struct {
        char c;
        const char *text;
    } table[] = {{'&', "&amp;"}, {'>', "&gt;"}, {'<', "&lt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    struct jin_value s;
    size_t mark;
    if (!jin_to_str(r, v, &s))
        return false;
    mark = r->out->len;
    if (!v->markup || v->type != JIN_STR) {
        for (size_t i = 0; i < s.len; i++) {
            const char *as = NULL;
            for (size_t k = 0; k < 5; k++)
                as = s.u.text[i] == table[k].c ? table[k].text : as;
            if (!(as != NULL ? jin_puts(r, as) : jin_put(r, s.u.text + i, 1)))
                return false;
        }
        if (!jin_step(r, s.len / 8) || !jin_captured(r, mark, &s))
            return false;
    }
    s.markup = true;
    *out = s;
    return true;
}

static bool add_strings(struct jin_run *r, const struct jin_value *a, const struct jin_value *b, struct jin_value *out)
{
    struct jin_value x = *a, y = *b;
    bool markup = a->markup || b->markup;
    if (markup && (!jin_escape(r, a, &x) || !jin_escape(r, b, &y)))
        return false;
    char *both = jin_alloc(r, (size_t)x.len + y.len + 1, 1);
    if (both == NULL)
        return false;
    memcpy(both, x.u.text, x.len);
    memcpy(both + x.len, y.u.text, y.len);
    *out = jin_str(both, (size_t)x.len + y.len);
    out->markup = markup;
    return true;
}

static bool add_lists(struct jin_run *r, const struct jin_list *a, const struct jin_list *b, struct jin_value *out)
{
    if (!jin_list_new(r, a->count + b->count, a->kind, out))
        return false;
    if (a->count > 0)
        memcpy(out->u.list->items, a->items, a->count * sizeof *a->items);
    if (b->count > 0)
        memcpy(out->u.list->items + a->count, b->items, b->count * sizeof *b->items);
    return true;
}

static bool no_operator(struct jin_run *r, const char *op, const struct jin_value *a, const struct jin_value *b)
{
    if (a->type == JIN_UNDEFINED || b->type == JIN_UNDEFINED)
        return jin_fail_undefined(r, a->type == JIN_UNDEFINED ? a : b);
    return jin_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op, jin_type_name(a), jin_type_name(b));
}

bool jin_add(struct jin_run *r, const struct jin_value *a, const struct jin_value *b, struct jin_value *out)
{
    int64_t i;
    if (a->type == JIN_STR && b->type == JIN_STR)
        return add_strings(r, a, b, out);
    if (jin_is_whole(a) && jin_is_whole(b)) {
        if (__builtin_add_overflow(jin_whole(a), jin_whole(b), &i))
            return overflow(r);
        *out = jin_int(i);
        return true;
    }
    if (jin_is_number(a) && jin_is_number(b)) {
        *out = jin_float(jin_real(a) + jin_real(b));
        return true;
    }
    if (a->type == JIN_LIST && b->type == JIN_LIST && a->u.list->kind == b->u.list->kind &&
        a->u.list->kind <= JIN_A_TUPLE)
        return add_lists(r, a->u.list, b->u.list, out);
    return no_operator(r, "+", a, b);
}

/* A string or list, several times over. */
static bool repeat(struct jin_run *r, const struct jin_value *v, int64_t times, struct jin_value *out)
{
    size_t n = v->type == JIN_STR ? v->len : v->u.list->count;
    size_t count = times > 0 ? (size_t)times : 0;
    if (n > 0 && count > JIN_RUN_ARENA / n)
        return jin_fail(r, "memory limit reached");
    count = n == 0 ? 0 : count;
    if (v->type == JIN_LIST) {
        if (!jin_list_new(r, n * count, v->u.list->kind, out))
            return false;
        for (size_t i = 0; i < count; i++)
            memcpy(out->u.list->items + i * n, v->u.list->items, n * sizeof(struct jin_value));
        return jin_step(r, count);
    }
    char *text = jin_alloc(r, n * count + 1, 1);
    if (text == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        memcpy(text + i * n, v->u.text, n);
    *out = jin_str(text, n * count);
    return jin_step(r, count);
}

static bool is_repeatable(const struct jin_value *v)
{
    return v->type == JIN_STR || (v->type == JIN_LIST && v->u.list->kind <= JIN_A_TUPLE);
}

static bool power(struct jin_run *r, int64_t base, int64_t exp, struct jin_value *out)
{
    int64_t v = 1;
    if (exp < 0) {
        if (base == 0)
            return jin_fail(r, "0.0 cannot be raised to a negative power");
        *out = jin_float(pow((double)base, (double)exp));
        return true;
    }
    if (base == 0 || base == 1 || base == -1) {
        *out = jin_int(exp == 0 ? 1 : base == -1 && exp % 2 == 0 ? 1 : base);
        return true;
    }
    for (int64_t i = 0; i < exp; i++) { /* ends by overflow after 63 rounds at most */
        if (__builtin_mul_overflow(v, base, &v))
            return overflow(r);
    }
    *out = jin_int(v);
    return true;
}

static bool whole_op(struct jin_run *r, jin_op op, int64_t a, int64_t b, struct jin_value *out)
{
    int64_t v = 0;
    bool bad = false;
    switch (op) {
    case JIN_SUB: bad = __builtin_sub_overflow(a, b, &v); break;
    case JIN_MUL: bad = __builtin_mul_overflow(a, b, &v); break;
    case JIN_POW: return power(r, a, b, out);
    case JIN_DIV:
        if (b == 0)
            return jin_fail(r, "division by zero");
        *out = jin_float((double)a / (double)b);
        return true;
    default:
        if (b == 0)
            return jin_fail(r, "integer division or modulo by zero");
        if (b == -1) {
            bad = op == JIN_FLOORDIV && __builtin_sub_overflow(0, a, &v);
            break;
        }
        int64_t rest = a % b, quotient = a / b;
        if (rest != 0 && (rest < 0) != (b < 0)) {
            rest += b;
            quotient--;
        }
        v = op == JIN_MOD ? rest : quotient;
    }
    *out = jin_int(v);
    return bad ? overflow(r) : true;
}

static bool real_op(struct jin_run *r, jin_op op, double a, double b, struct jin_value *out)
{
    double rest;
    if (b == 0 && (op == JIN_DIV || op == JIN_FLOORDIV || op == JIN_MOD))
        return jin_fail(r, "float division by zero");
    switch (op) {
    case JIN_SUB: *out = jin_float(a - b); return true;
    case JIN_MUL: *out = jin_float(a * b); return true;
    case JIN_DIV: *out = jin_float(a / b); return true;
    case JIN_POW: *out = jin_float(pow(a, b)); return true;
    default:
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        *out = jin_float(op == JIN_MOD ? rest : floor(round((a - rest) / b)));
        return true;
    }
}

bool jin_binary(struct jin_run *r, jin_op op, const struct jin_value *a, const struct jin_value *b,
                struct jin_value *out)
{
    static const char *const names[] = {"-", "*", "/", "//", "%", "** or pow()"};
    KVS_ASSERT(op <= JIN_POW);
    if (jin_is_whole(a) && jin_is_whole(b))
        return whole_op(r, op, jin_whole(a), jin_whole(b), out);
    if (jin_is_number(a) && jin_is_number(b))
        return real_op(r, op, jin_real(a), jin_real(b), out);
    if (op == JIN_MUL && is_repeatable(a) && jin_is_whole(b))
        return repeat(r, a, jin_whole(b), out);
    if (op == JIN_MUL && is_repeatable(b) && jin_is_whole(a))
        return repeat(r, b, jin_whole(a), out);
    if (op == JIN_MOD && a->type == JIN_STR) {
        bool tuple = b->type == JIN_LIST && b->u.list->kind == JIN_A_TUPLE;
        return jin_percent(r, jin_view(a), tuple ? b->u.list->items : b, tuple ? b->u.list->count : 1, out);
    }
    return no_operator(r, names[op], a, b);
}
