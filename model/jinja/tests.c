/* tests.c - what may stand after "is", and the comparisons by name that select() and its kind use.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include <string.h>

typedef bool (*test_fn)(const struct jin_value *v);

static bool is_defined(const struct jin_value *v)
{
    return v->type != JIN_UNDEFINED;
}
static bool is_undefined(const struct jin_value *v)
{
    return v->type == JIN_UNDEFINED;
}
static bool is_none(const struct jin_value *v)
{
    return v->type == JIN_NONE;
}
static bool is_boolean(const struct jin_value *v)
{
    return v->type == JIN_BOOL;
}
static bool is_true(const struct jin_value *v)
{
    return v->type == JIN_BOOL && v->u.b;
}
static bool is_false(const struct jin_value *v)
{
    return v->type == JIN_BOOL && !v->u.b;
}
static bool is_integer(const struct jin_value *v)
{
    return v->type == JIN_INT;
}
static bool is_float(const struct jin_value *v)
{
    return v->type == JIN_FLOAT;
}
static bool is_number(const struct jin_value *v)
{
    return jin_is_number(v);
}
static bool is_string(const struct jin_value *v)
{
    return v->type == JIN_STR;
}
static bool is_mapping(const struct jin_value *v)
{
    return v->type == JIN_DICT;
}
static bool is_iterable(const struct jin_value *v)
{
    return jin_iterable(v);
}
static bool is_escaped(const struct jin_value *v)
{
    return v->type == JIN_STR && v->markup;
}

static bool is_sequence(const struct jin_value *v)
{
    return v->type == JIN_UNDEFINED || v->type == JIN_STR || v->type == JIN_DICT || v->type == JIN_RANGE ||
           (v->type == JIN_LIST && v->u.list->kind <= JIN_A_TUPLE);
}

static bool is_callable(const struct jin_value *v)
{
    return v->type == JIN_UNDEFINED || v->type == JIN_MACRO || v->type == JIN_FUNCTION || v->type == JIN_METHOD ||
           v->type == JIN_LOOP;
}

static const struct {
    const char *name;
    test_fn fn;
} simple[] = {
    {"defined", is_defined}, {"undefined", is_undefined}, {"none", is_none},         {"boolean", is_boolean},
    {"true", is_true},       {"false", is_false},         {"integer", is_integer},   {"float", is_float},
    {"number", is_number},   {"string", is_string},       {"mapping", is_mapping},   {"iterable", is_iterable},
    {"escaped", is_escaped}, {"sequence", is_sequence},   {"callable", is_callable},
};

static const struct {
    const char *name;
    jin_op op;
} compares[] = {
    {"==", JIN_EQ}, {"eq", JIN_EQ}, {"equalto", JIN_EQ},     {"!=", JIN_NE}, {"ne", JIN_NE}, {"<", JIN_LT},
    {"lt", JIN_LT}, {"<=", JIN_LE}, {"lessthan", JIN_LT},    {"le", JIN_LE}, {">", JIN_GT},  {"gt", JIN_GT},
    {">=", JIN_GE}, {"ge", JIN_GE}, {"greaterthan", JIN_GT}, {"in", JIN_IN},
};

/* Nothing to be changed by `how`, and something that has case at all. */
static bool same_case(struct jin_run *r, const struct jin_value *v, char how, bool *out)
{
    struct jin_value s, changed, other;
    if (!jin_to_str(r, v, &s) || !jin_change_case(r, jin_view(&s), how, &changed) ||
        !jin_change_case(r, jin_view(&s), how == 'u' ? 'l' : 'u', &other))
        return false;
    *out = jin_same(jin_view(&s), jin_view(&changed)) && !jin_same(jin_view(&s), jin_view(&other));
    return true;
}

static bool remainder_is(struct jin_run *r, const struct jin_value *v, int64_t by, int64_t want, bool *out)
{
    struct jin_value n = jin_int(by), rest;
    if (!jin_is_number(v))
        return v->type == JIN_UNDEFINED ? jin_fail_undefined(r, v)
                                        : jin_fail(r, "not a number: '%s'", jin_type_name(v));
    if (!jin_binary(r, JIN_MOD, v, &n, &rest))
        return false;
    *out = jin_real(&rest) == (double)want;
    return true;
}

static bool identical(const struct jin_value *a, const struct jin_value *b)
{
    if (a->type != b->type || a->len != b->len)
        return false;
    switch ((jin_type)a->type) {
    case JIN_NONE: return true;
    case JIN_BOOL: return a->u.b == b->u.b;
    case JIN_INT: return a->u.i == b->u.i;
    case JIN_STR: return jin_same(jin_view(a), jin_view(b));
    default: return memcmp(&a->u, &b->u, sizeof a->u) == 0;
    }
}

bool jin_test(struct jin_run *r, struct mdl_str name, const struct jin_value *v, const struct jin_args *a, bool *out)
{
    for (size_t i = 0; i < sizeof simple / sizeof simple[0]; i++) {
        if (jin_is(name, simple[i].name)) {
            *out = simple[i].fn(v);
            return a->count + a->named == 0 || jin_fail(r, "the test '%s' takes no argument", simple[i].name);
        }
    }
    if (jin_is(name, "odd") || jin_is(name, "even"))
        return remainder_is(r, v, 2, name.data[0] == 'o', out);
    if (jin_is(name, "lower") || jin_is(name, "upper"))
        return same_case(r, v, name.data[0], out);
    if (a->count != 1 || a->named != 0)
        return jin_fail(r, "there is no test named '%.*s' without argument", name.len < 60 ? (int)name.len : 60,
                        name.data);
    for (size_t i = 0; i < sizeof compares / sizeof compares[0]; i++) {
        if (jin_is(name, compares[i].name))
            return jin_compare(r, compares[i].op, v, &a->values[0], out);
    }
    if (jin_is(name, "sameas")) {
        *out = identical(v, &a->values[0]);
        return true;
    }
    if (jin_is(name, "divisibleby")) {
        if (a->values[0].type != JIN_INT)
            return jin_fail(r, "divisibleby needs a whole number");
        return remainder_is(r, v, a->values[0].u.i, 0, out);
    }
    return jin_fail(r, "there is no test named '%.*s'", name.len < 60 ? (int)name.len : 60, name.data);
}
