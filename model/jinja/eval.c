/* eval.c - the value of an expression.
 * Each node costs a step and one level of depth. A chain of "+" over strings alone is put together in one piece: templates
 * build a turn as '<|im_start|>' + role + '\n' + content + ..., and the content should be copied once, not once per "+".
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include <string.h>

/* All parts are plain strings: one copy. */
static bool add_text(struct jin_run *r, const struct jin_value *parts, size_t count, struct jin_value *out)
{
    size_t total = 0, at = 0;
    for (size_t i = 0; i < count; i++)
        total += parts[i].len;
    char *text = jin_alloc(r, total + 1, 1);
    if (text == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].len > 0)
            memcpy(text + at, parts[i].u.text, parts[i].len);
        at += parts[i].len;
    }
    *out = jin_str(text, total);
    return true;
}

enum { TOGETHER = 8 };

/* Left to right; strings wait in `parts` until something else comes, or there are many. */
static bool eval_add(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value parts[TOGETHER];
    size_t count = 0;
    for (const struct jin_node *k = n->list; k != NULL; k = k->next) {
        struct jin_value v;
        if (!jin_eval(r, k, &v))
            return false;
        bool text = v.type == JIN_STR && !v.markup && (count == 0 || parts[0].type == JIN_STR) &&
                    (count == 0 || !parts[0].markup);
        if (text && count == TOGETHER) {
            if (!add_text(r, parts, count, &parts[0]))
                return false;
            count = 1;
        }
        if (text || count == 0) {
            parts[count++] = v;
            continue;
        }
        if ((count > 1 && !add_text(r, parts, count, &parts[0])) || !jin_add(r, &parts[0], &v, &parts[0]))
            return false;
        count = 1;
    }
    if (count > 1)
        return add_text(r, parts, count, out);
    *out = parts[0];
    return true;
}

static bool eval_concat(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    /* Values first: an operand may itself put text together at the end of the output. */
    size_t count = 0, i = 0;
    for (const struct jin_node *k = n->list; k != NULL; k = k->next)
        count++;
    struct jin_value *parts = jin_alloc(r, count, sizeof *parts);
    if (parts == NULL)
        return false;
    for (const struct jin_node *k = n->list; k != NULL; k = k->next, i++) {
        if (!jin_eval(r, k, &parts[i]) || !jin_to_str(r, &parts[i], &parts[i]))
            return false;
    }
    return add_text(r, parts, count, out);
}

static bool eval_logic(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    for (const struct jin_node *k = n->list; k != NULL; k = k->next) {
        if (!jin_eval(r, k, out))
            return false;
        if (jin_truthy(out) == (n->kind == JIN_N_OR))
            break;
    }
    return true;
}

static bool eval_compare(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value left, right;
    bool holds = true;
    if (!jin_eval(r, n->a, &left))
        return false;
    for (const struct jin_node *k = n->list; k != NULL && holds; k = k->next) {
        if (!jin_eval(r, k->a, &right) || !jin_compare(r, (jin_op)k->op, &left, &right, &holds))
            return false;
        left = right;
    }
    *out = jin_bool(holds);
    return true;
}

static bool eval_sign(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value v;
    if (!jin_eval(r, n->a, &v))
        return false;
    if (v.type == JIN_UNDEFINED)
        return jin_fail_undefined(r, &v);
    if (!jin_is_number(&v))
        return jin_fail(r, "bad operand type for unary %c: '%s'", n->kind == JIN_N_NEG ? '-' : '+', jin_type_name(&v));
    struct jin_value zero = jin_int(0);
    if (n->kind == JIN_N_NEG && v.type == JIN_FLOAT)
        *out = jin_float(-v.u.f);
    else
        return n->kind == JIN_N_NEG ? jin_binary(r, JIN_SUB, &zero, &v, out) : jin_add(r, &zero, &v, out);
    return true;
}

static bool eval_item(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value v, key, bounds[3];
    if (!jin_eval(r, n->a, &v))
        return false;
    if (n->b->kind != JIN_N_SLICE)
        return jin_eval(r, n->b, &key) && jin_item(r, &v, &key, out);
    const struct jin_node *const parts[] = {n->b->a, n->b->b, n->b->c};
    for (int i = 0; i < 3; i++) {
        bounds[i] = jin_none();
        if (parts[i] != NULL && !jin_eval(r, parts[i], &bounds[i]))
            return false;
    }
    return jin_slice(r, &v, bounds, out);
}

static bool eval_list(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    size_t count = 0, i = 0;
    struct jin_value list;
    for (const struct jin_node *k = n->list; k != NULL; k = k->next)
        count++;
    if (!jin_list_new(r, count, n->kind == JIN_N_LIST ? JIN_A_LIST : JIN_A_TUPLE, &list))
        return false;
    for (const struct jin_node *k = n->list; k != NULL; k = k->next) {
        if (!jin_eval(r, k, &list.u.list->items[i++]))
            return false;
    }
    *out = list;
    return true;
}

static bool eval_dict(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value dict, key, value;
    if (!jin_dict_new(r, &dict))
        return false;
    for (const struct jin_node *k = n->list; k != NULL; k = k->next) {
        if (!jin_eval(r, k->a, &key) || !jin_eval(r, k->b, &value))
            return false;
        if (key.type == JIN_DICT || (key.type == JIN_LIST && key.u.list->kind == JIN_A_LIST))
            return jin_fail(r, "unhashable type: '%s'", jin_type_name(&key));
        if (!jin_dict_set(r, dict.u.dict, &key, &value))
            return false;
    }
    *out = dict;
    return true;
}

static bool eval_cond(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value test;
    if (!jin_eval(r, n->a, &test))
        return false;
    if (jin_truthy(&test))
        return jin_eval(r, n->b, out);
    if (n->c != NULL)
        return jin_eval(r, n->c, out);
    return jin_undefined_text(r, "the inline if-expression evaluated to false and no else section was defined", out);
}

bool jin_eval_args(struct jin_run *r, const struct jin_node *n, struct jin_args *out)
{
    size_t count = 0, named = 0;
    *out = (struct jin_args){0};
    for (const struct jin_node *k = n->list; k != NULL; k = k->next)
        count++;
    for (const struct jin_node *k = n->list2; k != NULL; k = k->next)
        named++;
    if (count + named == 0)
        return true;
    out->values = jin_alloc(r, count + named, sizeof *out->values);
    out->names = jin_alloc(r, named, sizeof *out->names);
    if (out->values == NULL || out->names == NULL)
        return false;
    out->named_values = out->values + count;
    for (const struct jin_node *k = n->list; k != NULL; k = k->next) {
        if (!jin_eval(r, k, &out->values[out->count]))
            return false;
        out->count++;
    }
    for (const struct jin_node *k = n->list2; k != NULL; k = k->next) {
        out->names[out->named] = k->name;
        if (!jin_eval(r, k->a, &out->named_values[out->named]))
            return false;
        out->named++;
    }
    return true;
}

bool jin_call_value(struct jin_run *r, const struct jin_value *f, const struct jin_args *a, struct jin_value *out)
{
    switch ((jin_type)f->type) {
    case JIN_MACRO: return jin_call_macro(r, f->u.macro, a, NULL, out);
    case JIN_FUNCTION: return jin_call_function(r, f->u.function, a, out);
    case JIN_METHOD: return jin_call_method(r, f->u.method, a, out);
    case JIN_UNDEFINED: return jin_fail_undefined(r, f);
    default: return jin_fail(r, "'%s' object is not callable", jin_type_name(f));
    }
}

static bool eval_call(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value f;
    struct jin_args args;
    if (!jin_eval(r, n->a, &f) || !jin_eval_args(r, n, &args))
        return false;
    r->line = n->line;
    return jin_call_value(r, &f, &args, out);
}

/* The filters of a block: the innermost has no operand of its own and gets the block's text. */
bool jin_eval_filter(struct jin_run *r, const struct jin_node *n, const struct jin_value *input, struct jin_value *out)
{
    struct jin_value v = *input;
    struct jin_args args;
    if (!jin_enter(r))
        return false;
    bool ok = (n->a == NULL || jin_eval_filter(r, n->a, input, &v)) && jin_eval_args(r, n, &args);
    r->line = n->line;
    ok = ok && jin_filter(r, n->name, &v, &args, out);
    jin_leave(r);
    return ok;
}

static bool eval_filter(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value v;
    struct jin_args args;
    KVS_ASSERT(n->a != NULL);
    if (!jin_eval(r, n->a, &v) || !jin_eval_args(r, n, &args))
        return false;
    r->line = n->line;
    return jin_filter(r, n->name, &v, &args, out);
}

static bool eval_test(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value v;
    struct jin_args args;
    bool holds = false;
    if (!jin_eval(r, n->a, &v) || !jin_eval_args(r, n, &args))
        return false;
    r->line = n->line;
    if (!jin_test(r, n->name, &v, &args, &holds))
        return false;
    *out = jin_bool(holds);
    return true;
}

static bool eval_attr(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value v;
    return jin_eval(r, n->a, &v) && jin_attribute(r, &v, n->name, out);
}

static bool eval_binary(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value a, b;
    return jin_eval(r, n->a, &a) && jin_eval(r, n->b, &b) && jin_binary(r, (jin_op)n->op, &a, &b, out);
}

static bool eval_not(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_value v;
    if (!jin_eval(r, n->a, &v))
        return false;
    *out = jin_bool(!jin_truthy(&v));
    return true;
}

static bool eval(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    switch ((jin_kind)n->kind) {
    case JIN_N_CONST: *out = n->value; return true;
    case JIN_N_NAME: return jin_lookup(r, n->name, out);
    case JIN_N_ADD: return eval_add(r, n, out);
    case JIN_N_BINARY: return eval_binary(r, n, out);
    case JIN_N_CONCAT: return eval_concat(r, n, out);
    case JIN_N_AND:
    case JIN_N_OR: return eval_logic(r, n, out);
    case JIN_N_NOT: return eval_not(r, n, out);
    case JIN_N_NEG:
    case JIN_N_POS: return eval_sign(r, n, out);
    case JIN_N_COMPARE: return eval_compare(r, n, out);
    case JIN_N_COND: return eval_cond(r, n, out);
    case JIN_N_ATTR: return eval_attr(r, n, out);
    case JIN_N_ITEM: return eval_item(r, n, out);
    case JIN_N_CALL: return eval_call(r, n, out);
    case JIN_N_FILTER: return eval_filter(r, n, out);
    case JIN_N_TEST: return eval_test(r, n, out);
    case JIN_N_LIST:
    case JIN_N_TUPLE: return eval_list(r, n, out);
    case JIN_N_DICT: return eval_dict(r, n, out);
    default: return jin_fail(r, "this has no value here");
    }
}

bool jin_eval(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    if (!jin_enter(r))
        return false;
    bool ok = eval(r, n, out);
    jin_leave(r);
    return ok;
}
