/* exec.c - statements: text goes to the end of the run's output, names into scopes.
 * Scopes are as Jinja2's: a loop's body (anew for each round), a macro's, a block's and a "with" have their own, "if" has not.
 * What is set inside is gone outside; templates that need to carry something out use a namespace. A macro sees the scope that
 * it was defined in, not its caller's. A block or macro that is a value writes to the output too, and what it wrote is then
 * taken back and kept as a string.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include <string.h>

typedef enum flow { NEXT, BREAK, CONTINUE, FAILED } flow;

static flow exec_list(struct jin_run *r, const struct jin_node *n);

/* ---- names ---- */

bool jin_set_var(struct jin_run *r, struct jin_scope *s, struct mdl_str name, const struct jin_value *v)
{
    size_t seen = 0;
    for (struct jin_var *k = s->vars; k != NULL; k = k->next, seen++) {
        if (jin_same(k->name, name)) {
            k->value = *v;
            return jin_step(r, seen / 8);
        }
    }
    struct jin_var *k = jin_alloc(r, 1, sizeof *k);
    if (k == NULL)
        return false;
    *k = (struct jin_var){name, *v, s->vars};
    s->vars = k;
    return jin_step(r, seen / 8);
}

bool jin_lookup(struct jin_run *r, struct mdl_str name, struct jin_value *out)
{
    size_t seen = 0;
    for (const struct jin_scope *s = r->scope; s != NULL; s = s->parent) {
        for (const struct jin_var *k = s->vars; k != NULL; k = k->next, seen++) {
            if (jin_same(k->name, name)) {
                *out = k->value;
                return jin_step(r, seen / 8);
            }
        }
    }
    if (!jin_step(r, seen / 8))
        return false;
    int f = jin_function(name);
    if (f < 0)
        return jin_undefined_name(r, name, out);
    *out = (struct jin_value){.type = JIN_FUNCTION, .u.function = f};
    return true;
}

static bool open_scope(struct jin_run *r, struct jin_scope *parent)
{
    struct jin_scope *s = jin_alloc(r, 1, sizeof *s);
    if (s == NULL)
        return false;
    s->parent = parent;
    r->scope = s;
    return true;
}

static bool assign(struct jin_run *r, const struct jin_node *target, const struct jin_value *v);

static bool assign_field(struct jin_run *r, const struct jin_node *target, const struct jin_value *v)
{
    struct jin_value ns;
    if (!jin_lookup(r, target->name, &ns))
        return false;
    if (ns.type == JIN_UNDEFINED)
        return jin_fail_undefined(r, &ns);
    if (ns.type != JIN_NAMESPACE)
        return jin_fail(r, "cannot assign attribute on non-namespace object");
    return jin_dict_set(r, ns.u.dict, &target->value, v);
}

static bool unpack(struct jin_run *r, const struct jin_node *target, const struct jin_value *v)
{
    const struct jin_value *items;
    size_t count, want = 0, i = 0;
    for (const struct jin_node *k = target->list; k != NULL; k = k->next)
        want++;
    if (!jin_iterate(r, v, &items, &count))
        return false;
    if (count != want)
        return jin_fail(r, "%zu values to unpack into %zu names", count, want);
    for (const struct jin_node *k = target->list; k != NULL; k = k->next) {
        if (!assign(r, k, &items[i++]))
            return false;
    }
    return true;
}

static bool assign(struct jin_run *r, const struct jin_node *target, const struct jin_value *v)
{
    if (target->kind == JIN_N_TUPLE)
        return unpack(r, target, v);
    if (target->kind == JIN_N_NSREF)
        return assign_field(r, target, v);
    return jin_set_var(r, r->scope, target->name, v);
}

/* ---- statements ---- */

static flow exec_output(struct jin_run *r, const struct jin_node *n)
{
    struct jin_value v;
    return jin_eval(r, n->a, &v) && jin_put_value(r, &v) ? NEXT : FAILED;
}

static flow exec_if(struct jin_run *r, const struct jin_node *n)
{
    for (const struct jin_node *b = n->list; b != NULL; b = b->next) {
        struct jin_value test = jin_bool(true);
        if (b->a != NULL) {
            r->line = b->line;
            if (!jin_eval(r, b->a, &test))
                return FAILED;
        }
        if (jin_truthy(&test))
            return exec_list(r, b->list);
    }
    return NEXT;
}

/* for x in xs if TEST: the elements for which TEST holds. */
static bool pick(struct jin_run *r, const struct jin_node *n, const struct jin_value **items, size_t *count)
{
    struct jin_scope *outer = r->scope;
    struct jin_value kept, test;
    size_t k = 0;
    if (n->c == NULL)
        return true;
    if (!jin_list_new(r, *count, JIN_A_LIST, &kept))
        return false;
    for (size_t i = 0; i < *count; i++) {
        if (!open_scope(r, outer) || !assign(r, n->a, &(*items)[i]) || !jin_eval(r, n->c, &test))
            return false;
        if (jin_truthy(&test))
            kept.u.list->items[k++] = (*items)[i];
    }
    r->scope = outer;
    *items = kept.u.list->items;
    *count = k;
    return true;
}

static flow exec_for(struct jin_run *r, const struct jin_node *n)
{
    struct jin_scope *outer = r->scope;
    const struct jin_value *items;
    struct jin_value v;
    size_t count;
    bool finished = false; /* Jinja2's "else" runs unless a round came to its end, however many were begun */
    flow f = NEXT;
    if (!jin_eval(r, n->b, &v) || !jin_iterate(r, &v, &items, &count) || !pick(r, n, &items, &count))
        return FAILED;
    struct jin_value *changed = jin_alloc(r, 1, sizeof *changed);
    if (changed == NULL)
        return FAILED;
    changed->type = JIN_LOOP;
    for (size_t i = 0; i < count && f != BREAK; i++) {
        struct jin_loop *l = jin_alloc(r, 1, sizeof *l);
        if (l == NULL || !open_scope(r, outer))
            return FAILED;
        *l = (struct jin_loop){items, count, i, changed};
        struct jin_value loop = {.type = JIN_LOOP, .u.loop = l};
        if (!assign(r, n->a, &items[i]) || !jin_set_var(r, r->scope, (struct mdl_str){"loop", 4}, &loop) ||
            !jin_step(r, 1))
            return FAILED;
        f = exec_list(r, n->list);
        if (f == FAILED)
            return f;
        finished = finished || f == NEXT;
    }
    r->scope = outer;
    if (finished || n->list2 == NULL)
        return NEXT;
    if (!open_scope(r, outer))
        return FAILED;
    f = exec_list(r, n->list2);
    r->scope = outer;
    return f;
}

/* Statements in a scope of their own; when `out` is given their text becomes a value. */
static flow exec_scope(struct jin_run *r, const struct jin_node *list, struct jin_value *out)
{
    struct jin_scope *outer = r->scope;
    size_t mark = r->out->len;
    if (!open_scope(r, outer))
        return FAILED;
    flow f = exec_list(r, list);
    r->scope = outer;
    if (f != FAILED && out != NULL && !jin_captured(r, mark, out))
        return FAILED;
    return f;
}

static flow exec_block(struct jin_run *r, const struct jin_node *n)
{
    struct jin_value v;
    flow f = exec_scope(r, n->list, &v);
    if (f != NEXT)
        return f;
    if (n->b != NULL && !jin_eval_filter(r, n->b, &v, &v))
        return FAILED;
    return (n->kind == JIN_N_SETBLOCK ? assign(r, n->a, &v) : jin_put_value(r, &v)) ? NEXT : FAILED;
}

static flow exec_with(struct jin_run *r, const struct jin_node *n)
{
    struct jin_scope *outer = r->scope;
    size_t count = 0, i = 0;
    for (const struct jin_node *k = n->list; k != NULL; k = k->next)
        count++;
    struct jin_value *values = jin_alloc(r, count, sizeof *values);
    if (values == NULL)
        return FAILED;
    for (const struct jin_node *k = n->list; k != NULL; k = k->next) {
        if (!jin_eval(r, k->b, &values[i++]))
            return FAILED;
    }
    if (!open_scope(r, outer))
        return FAILED;
    i = 0;
    for (const struct jin_node *k = n->list; k != NULL; k = k->next) {
        if (!assign(r, k->a, &values[i++]))
            return FAILED;
    }
    flow f = exec_list(r, n->list2);
    r->scope = outer;
    return f;
}

static bool make_macro(struct jin_run *r, const struct jin_node *n, struct jin_value *out)
{
    struct jin_macro *m = jin_alloc(r, 1, sizeof *m);
    if (m == NULL)
        return false;
    *m = (struct jin_macro){n, r->scope};
    *out = (struct jin_value){.type = JIN_MACRO, .u.macro = m};
    return true;
}

/* {% call(x) f(...) %}body{% endcall %}: f is called, and the body is what it knows as caller. */
static flow exec_call_block(struct jin_run *r, const struct jin_node *n)
{
    struct jin_value f, caller, text;
    struct jin_args args;
    if (!make_macro(r, n->b, &caller) || !jin_eval(r, n->a->a, &f) || !jin_eval_args(r, n->a, &args))
        return FAILED;
    if (f.type == JIN_UNDEFINED)
        return jin_fail_undefined(r, &f) ? NEXT : FAILED;
    if (f.type != JIN_MACRO)
        return jin_fail(r, "only a macro can be called with a block") ? NEXT : FAILED;
    return jin_call_macro(r, f.u.macro, &args, &caller, &text) && jin_put_value(r, &text) ? NEXT : FAILED;
}

static flow exec_macro(struct jin_run *r, const struct jin_node *n)
{
    struct jin_value v;
    return make_macro(r, n, &v) && jin_set_var(r, r->scope, n->name, &v) ? NEXT : FAILED;
}

static flow exec_set(struct jin_run *r, const struct jin_node *n)
{
    struct jin_value v;
    return jin_eval(r, n->b, &v) && assign(r, n->a, &v) ? NEXT : FAILED;
}

static flow exec(struct jin_run *r, const struct jin_node *n)
{
    switch ((jin_kind)n->kind) {
    case JIN_N_DATA: return jin_put(r, n->value.u.text, n->value.len) ? NEXT : FAILED;
    case JIN_N_OUTPUT: return exec_output(r, n);
    case JIN_N_IF: return exec_if(r, n);
    case JIN_N_FOR: return exec_for(r, n);
    case JIN_N_SET: return exec_set(r, n);
    case JIN_N_SETBLOCK:
    case JIN_N_FILTERBLOCK: return exec_block(r, n);
    case JIN_N_MACRO: return exec_macro(r, n);
    case JIN_N_CALLBLOCK: return exec_call_block(r, n);
    case JIN_N_WITH: return exec_with(r, n);
    case JIN_N_SCOPE: return exec_scope(r, n->list, NULL);
    case JIN_N_BREAK: return BREAK;
    case JIN_N_CONTINUE: return CONTINUE;
    default: return jin_fail(r, "this is no statement") ? NEXT : FAILED;
    }
}

static flow exec_list(struct jin_run *r, const struct jin_node *n)
{
    flow f = NEXT;
    if (!jin_enter(r))
        return FAILED;
    for (; n != NULL && f == NEXT; n = n->next) {
        r->line = n->line;
        f = jin_step(r, 1) ? exec(r, n) : FAILED;
    }
    jin_leave(r);
    return f;
}

/* ---- macros ---- */

static bool extra_args(struct jin_run *r, const struct jin_node *n, const struct jin_args *a, size_t params,
                       const bool *used)
{
    struct jin_value more, named;
    size_t count = a->count > params ? a->count - params : 0;
    int len = (int)(n->name.len < 60 ? n->name.len : 60);
    if (count > 0 && !(n->op & JIN_USES_VARARGS))
        return jin_fail(r, "macro '%.*s' takes not more than %zu argument(s)", len, n->name.data, params);
    if (n->op & JIN_USES_VARARGS) {
        if (!jin_list_new(r, count, JIN_A_TUPLE, &more))
            return false;
        for (size_t i = 0; i < count; i++)
            more.u.list->items[i] = a->values[params + i];
        if (!jin_set_var(r, r->scope, (struct mdl_str){"varargs", 7}, &more))
            return false;
    }
    if (!jin_dict_new(r, &named))
        return false;
    for (size_t i = 0; i < a->named; i++) {
        struct jin_value key = jin_str(a->names[i].data, a->names[i].len);
        if (used[i])
            continue;
        if (!(n->op & JIN_USES_KWARGS))
            return jin_fail(r, "macro '%.*s' takes no keyword argument '%.*s'", len, n->name.data,
                            (int)(key.len < 60 ? key.len : 60), key.u.text);
        if (!jin_dict_set(r, named.u.dict, &key, &a->named_values[i]))
            return false;
    }
    return !(n->op & JIN_USES_KWARGS) || jin_set_var(r, r->scope, (struct mdl_str){"kwargs", 6}, &named);
}

static bool bind(struct jin_run *r, const struct jin_node *n, const struct jin_args *a, const struct jin_value *caller)
{
    bool used[JIN_ARGS] = {false};
    size_t i = 0;
    for (const struct jin_node *p = n->list; p != NULL; p = p->next, i++) {
        struct jin_value v;
        bool given = i < a->count;
        if (given)
            v = a->values[i];
        for (size_t k = 0; k < a->named; k++) {
            if (!jin_same(a->names[k], p->name))
                continue;
            if (given)
                return jin_fail(r, "a macro's parameter is given twice");
            used[k] = given = true;
            v = a->named_values[k];
        }
        if (!given && p->a != NULL && !jin_eval(r, p->a, &v))
            return false;
        if (!given && p->a == NULL && !jin_undefined_name(r, p->name, &v))
            return false;
        if (!jin_set_var(r, r->scope, p->name, &v))
            return false;
    }
    if (n->op & JIN_USES_CALLER) {
        struct jin_value v;
        if (caller == NULL && !jin_undefined_text(r, "No caller defined", &v))
            return false;
        if (!jin_set_var(r, r->scope, (struct mdl_str){"caller", 6}, caller != NULL ? caller : &v))
            return false;
    }
    return extra_args(r, n, a, i, used);
}

bool jin_call_macro(struct jin_run *r, const struct jin_macro *m, const struct jin_args *a,
                    const struct jin_value *caller, struct jin_value *out)
{
    struct jin_scope *outer = r->scope;
    size_t mark = r->out->len;
    uint32_t line = r->line;
    if (!open_scope(r, m->scope))
        return false;
    bool ok = bind(r, m->node, a, caller) && exec_list(r, m->node->list2) != FAILED && jin_captured(r, mark, out);
    r->scope = outer;
    if (ok)
        r->line = line;
    return ok;
}

/* ---- a rendering ---- */

void jin_run_init(struct jin_run *r, struct kvs_buf *out, int64_t now_s, struct kvs_error *err)
{
    *r = (struct jin_run){.out = out, .err = err, .steps_left = JIN_SLICE, .steps_after = JIN_STEPS - JIN_SLICE, .now_s = now_s, .line = 1};
    kvs_arena_init(&r->arena, JIN_RUN_ARENA);
}

void jin_run_fini(struct jin_run *r)
{
    kvs_arena_fini(&r->arena);
}

kvs_status jin_render(struct jin_run *r, const struct jin_template *t)
{
    size_t before = r->out->len;
    r->scope = &r->globals;
    if (open_scope(r, &r->globals) && exec_list(r, t->body) != FAILED)
        return KVS_OK;
    KVS_ASSERT(r->status != KVS_OK);
    r->out->len = before;
    if (r->out->data != NULL)
        r->out->data[before] = 0;
    return r->status;
}
