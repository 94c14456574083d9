/* expr.c - tokens to expression nodes, by the grammar of Jinja2's own parser (low to high):
 *   a if b else c | or | and | not | == != < <= > >= in, not in | + - | ~ | * / // % | ** | - + | primary, .x [x] (x), |filter, is
 * Chains of "+", "~", "and", "or" become one node with a list, so that a long chain is not a deep tree; all other chains grow
 * the tree and end at JIN_NODE_DEPTH.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include <string.h>

bool jin_advance(struct jin_parser *p)
{
    if (p->has_after) {
        p->now = p->after;
        p->has_after = false;
        return true;
    }
    return jin_lex(&p->lexer, &p->now);
}

bool jin_peek(struct jin_parser *p)
{
    if (p->has_after)
        return true;
    p->has_after = jin_lex(&p->lexer, &p->after);
    return p->has_after;
}

bool jin_at_op(const struct jin_parser *p, const char *op)
{
    return p->now.type == JIN_T_OP && jin_is(p->now.text, op);
}

bool jin_at_name(const struct jin_parser *p, const char *name)
{
    return p->now.type == JIN_T_NAME && jin_is(p->now.text, name);
}

bool jin_unexpected(struct jin_parser *p)
{
    static const char *const words[] = {
        [JIN_T_DATA] = "text",        [JIN_T_VAR_BEGIN] = "'{{'",      [JIN_T_VAR_END] = "'}}'",
        [JIN_T_BLOCK_BEGIN] = "'{%'", [JIN_T_BLOCK_END] = "'%}'",      [JIN_T_NAME] = "name",
        [JIN_T_STRING] = "string",    [JIN_T_INT] = "number",          [JIN_T_FLOAT] = "number",
        [JIN_T_OP] = "operator",      [JIN_T_EOF] = "end of template",
    };
    p->lexer.line = p->now.line;
    if (p->now.type == JIN_T_NAME || p->now.type == JIN_T_OP)
        return jin_lex_fail(&p->lexer, "unexpected %s '%.*s'", words[p->now.type],
                            p->now.text.len < 60 ? (int)p->now.text.len : 60, p->now.text.data);
    return jin_lex_fail(&p->lexer, "unexpected %s", words[p->now.type]);
}

bool jin_expect_op(struct jin_parser *p, const char *op)
{
    return jin_at_op(p, op) ? jin_advance(p) : jin_unexpected(p);
}

bool jin_expect_name(struct jin_parser *p, struct mdl_str *out)
{
    if (p->now.type != JIN_T_NAME)
        return jin_unexpected(p);
    *out = p->now.text;
    return jin_advance(p);
}

bool jin_deeper(struct jin_parser *p)
{
    if (p->nest >= JIN_NEST)
        return jin_lex_fail(&p->lexer, "nested more than %d deep", JIN_NEST);
    p->nest++;
    return true;
}

struct jin_node *jin_node(struct jin_parser *p, jin_kind kind)
{
    struct jin_node *n = kvs_arena_alloc(p->lexer.arena, sizeof *n);
    if (n == NULL) {
        (void)jin_lex_memory(&p->lexer, sizeof *n);
        return NULL;
    }
    n->kind = (uint8_t)kind;
    n->line = p->now.line;
    return n;
}

static unsigned int highest(const struct jin_node *list, unsigned int best)
{
    for (; list != NULL; list = list->next)
        best = list->depth > best ? list->depth : best;
    return best;
}

bool jin_done(struct jin_parser *p, struct jin_node *n)
{
    const struct jin_node *parts[] = {n->a, n->b, n->c};
    unsigned int best = highest(n->list2, highest(n->list, 0));
    for (size_t i = 0; i < 3; i++) {
        if (parts[i] != NULL && parts[i]->depth > best)
            best = parts[i]->depth;
    }
    if (best >= JIN_NODE_DEPTH)
        return jin_lex_fail(&p->lexer, "an expression is more than %d operations deep", JIN_NODE_DEPTH);
    n->depth = (uint16_t)(best + 1);
    return true;
}

static bool two(struct jin_parser *p, jin_kind kind, jin_op op, struct jin_node *a, struct jin_node *b,
                struct jin_node **out)
{
    struct jin_node *n = jin_node(p, kind);
    if (n == NULL)
        return false;
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    *out = n;
    return jin_done(p, n);
}

typedef bool (*parse_fn)(struct jin_parser *p, struct jin_node **out);

/* part (WORD part)*, as one node with a list when there are several. */
static bool chain(struct jin_parser *p, jin_kind kind, const char *word, bool op, parse_fn part, struct jin_node **out)
{
    if (!part(p, out))
        return false;
    if (!(op ? jin_at_op(p, word) : jin_at_name(p, word)))
        return true;
    struct jin_node *n = jin_node(p, kind), **tail = n != NULL ? &n->list : NULL;
    if (n == NULL)
        return false;
    *tail = *out;
    tail = &(*tail)->next;
    while (op ? jin_at_op(p, word) : jin_at_name(p, word)) {
        if (!jin_advance(p) || !part(p, tail))
            return false;
        tail = &(*tail)->next;
    }
    *out = n;
    return jin_done(p, n);
}

/* ---- primary ---- */

/* key: value, ... up to "}" or item, ... up to "]". */
static bool parse_literal(struct jin_parser *p, bool dict, struct jin_node **out)
{
    const char *close = dict ? "}" : "]";
    struct jin_node *n = jin_node(p, dict ? JIN_N_DICT : JIN_N_LIST), **tail;
    if (n == NULL || !jin_advance(p))
        return false;
    for (tail = &n->list; !jin_at_op(p, close); tail = &(*tail)->next) {
        struct jin_node *key = NULL, *value = NULL;
        if (tail != &n->list && !jin_expect_op(p, ","))
            return false;
        if (jin_at_op(p, close))
            break;
        if (!jin_parse_expr(p, &key))
            return false;
        *tail = key;
        if (dict &&
            (!jin_expect_op(p, ":") || !jin_parse_expr(p, &value) || !two(p, JIN_N_PAIR, JIN_EQ, key, value, tail)))
            return false;
    }
    *out = n;
    return jin_advance(p) && jin_done(p, n);
}

/* Adjacent strings are one. */
static bool parse_string(struct jin_parser *p, struct jin_node *n)
{
    struct mdl_str s = p->now.text;
    if (!jin_advance(p))
        return false;
    while (p->now.type == JIN_T_STRING) {
        char *both = kvs_arena_alloc(p->lexer.arena, s.len + p->now.text.len + 1);
        if (both == NULL)
            return jin_lex_memory(&p->lexer, s.len + p->now.text.len + 1);
        if (s.len > 0)
            memcpy(both, s.data, s.len);
        if (p->now.text.len > 0)
            memcpy(both + s.len, p->now.text.data, p->now.text.len);
        s = (struct mdl_str){both, s.len + p->now.text.len};
        if (!jin_advance(p))
            return false;
    }
    n->value = jin_str(s.data, s.len);
    return jin_done(p, n);
}

static bool parse_name(struct jin_parser *p, struct jin_node *n)
{
    struct mdl_str s = p->now.text;
    if (jin_is(s, "true") || jin_is(s, "True") || jin_is(s, "false") || jin_is(s, "False")) {
        n->value = jin_bool(s.data[0] == 't' || s.data[0] == 'T');
    } else if (jin_is(s, "none") || jin_is(s, "None")) {
        n->value = jin_none();
    } else {
        n->kind = JIN_N_NAME;
        n->name = s;
        p->uses |= jin_is(s, "varargs") ? JIN_USES_VARARGS : 0;
        p->uses |= jin_is(s, "kwargs") ? JIN_USES_KWARGS : 0;
        p->uses |= jin_is(s, "caller") ? JIN_USES_CALLER : 0;
    }
    return jin_advance(p) && jin_done(p, n);
}

static bool parse_primary(struct jin_parser *p, struct jin_node **out)
{
    if (jin_at_op(p, "["))
        return parse_literal(p, false, out);
    if (jin_at_op(p, "{"))
        return parse_literal(p, true, out);
    if (jin_at_op(p, "("))
        return jin_advance(p) && jin_parse_tuple(p, true, NULL, true, out) && jin_expect_op(p, ")");
    struct jin_node *n = jin_node(p, JIN_N_CONST);
    *out = n;
    if (n == NULL)
        return false;
    switch (p->now.type) {
    case JIN_T_NAME: return parse_name(p, n);
    case JIN_T_STRING: return parse_string(p, n);
    case JIN_T_INT:
    case JIN_T_FLOAT: n->value = p->now.number; return jin_advance(p) && jin_done(p, n);
    default: return jin_unexpected(p);
    }
}

/* ---- what may follow a primary ---- */

static bool parse_args(struct jin_parser *p, struct jin_node *n)
{
    struct jin_node **tail = &n->list, **named = &n->list2;
    size_t count = 0;
    if (!jin_expect_op(p, "("))
        return false;
    while (!jin_at_op(p, ")")) {
        if (count > 0 && !jin_expect_op(p, ","))
            return false;
        if (count > 0 && jin_at_op(p, ")"))
            break;
        if (jin_at_op(p, "*") || jin_at_op(p, "**"))
            return jin_lex_fail(&p->lexer, "arguments from a list or dict (*, **) are not supported");
        if (++count > JIN_ARGS)
            return jin_lex_fail(&p->lexer, "a call has more than %d arguments", JIN_ARGS);
        if (!jin_peek(p))
            return false;
        if (p->now.type == JIN_T_NAME && p->after.type == JIN_T_OP && jin_is(p->after.text, "=")) {
            struct jin_node *k = jin_node(p, JIN_N_KWARG);
            if (k == NULL || !jin_expect_name(p, &k->name) || !jin_advance(p) || !jin_parse_expr(p, &k->a) ||
                !jin_done(p, k))
                return false;
            *named = k;
            named = &k->next;
        } else {
            if (named != &n->list2)
                return jin_lex_fail(&p->lexer, "an argument without name follows one with a name");
            if (!jin_parse_expr(p, tail))
                return false;
            tail = &(*tail)->next;
        }
    }
    return jin_advance(p);
}

static bool parse_call(struct jin_parser *p, struct jin_node *f, struct jin_node **out)
{
    struct jin_node *n = jin_node(p, JIN_N_CALL);
    if (n == NULL)
        return false;
    n->a = f;
    *out = n;
    return parse_args(p, n) && jin_done(p, n);
}

/* One index or slice, after "[". */
static bool parse_index(struct jin_parser *p, struct jin_node **out)
{
    struct jin_node *n = jin_node(p, JIN_N_SLICE);
    if (n == NULL)
        return false;
    if (!jin_at_op(p, ":")) {
        if (!jin_parse_expr(p, &n->a))
            return false;
        if (!jin_at_op(p, ":")) {
            *out = n->a;
            return true;
        }
    }
    if (!jin_advance(p))
        return false;
    if (!jin_at_op(p, ":") && !jin_at_op(p, "]") && !jin_parse_expr(p, &n->b))
        return false;
    if (jin_at_op(p, ":")) {
        if (!jin_advance(p) || (!jin_at_op(p, "]") && !jin_parse_expr(p, &n->c)))
            return false;
    }
    *out = n;
    return jin_done(p, n);
}

static bool parse_subscript(struct jin_parser *p, struct jin_node *of, struct jin_node **out)
{
    struct jin_node *n = jin_node(p, JIN_N_ITEM);
    if (n == NULL)
        return false;
    n->a = of;
    *out = n;
    if (jin_at_op(p, "[")) {
        if (!jin_advance(p) || !parse_index(p, &n->b))
            return false;
        if (!jin_at_op(p, "]"))
            return jin_unexpected(p);
        return jin_advance(p) && jin_done(p, n);
    }
    if (!jin_advance(p))
        return false;
    if (p->now.type == JIN_T_NAME) {
        n->kind = JIN_N_ATTR;
        return jin_expect_name(p, &n->name) && jin_done(p, n);
    }
    if (p->now.type != JIN_T_INT)
        return jin_unexpected(p);
    n->b = jin_node(p, JIN_N_CONST);
    if (n->b == NULL)
        return false;
    n->b->value = p->now.number;
    return jin_advance(p) && jin_done(p, n->b) && jin_done(p, n);
}

static bool parse_postfix(struct jin_parser *p, struct jin_node **node)
{
    for (;;) {
        if (jin_at_op(p, ".") || jin_at_op(p, "[")) {
            if (!parse_subscript(p, *node, node))
                return false;
        } else if (jin_at_op(p, "(")) {
            if (!parse_call(p, *node, node))
                return false;
        } else {
            return true;
        }
    }
}

bool jin_parse_filters(struct jin_parser *p, struct jin_node *input, bool start_inline, struct jin_node **out)
{
    *out = input;
    while (start_inline || jin_at_op(p, "|")) {
        if (!start_inline && !jin_advance(p))
            return false;
        start_inline = false;
        struct jin_node *n = jin_node(p, JIN_N_FILTER);
        if (n == NULL || !jin_expect_name(p, &n->name))
            return false;
        n->a = *out;
        if (jin_at_op(p, "(") && !parse_args(p, n))
            return false;
        *out = n;
        if (!jin_done(p, n))
            return false;
    }
    return true;
}

/* is [not] NAME [(arguments) | one argument] */
static bool parse_test(struct jin_parser *p, struct jin_node **node)
{
    struct jin_node *n = jin_node(p, JIN_N_TEST);
    if (n == NULL || !jin_advance(p))
        return false;
    bool negated = jin_at_name(p, "not");
    if ((negated && !jin_advance(p)) || !jin_expect_name(p, &n->name))
        return false;
    n->a = *node;
    if (jin_at_op(p, "(")) {
        if (!parse_args(p, n))
            return false;
    } else if (p->now.type == JIN_T_STRING || p->now.type == JIN_T_INT || p->now.type == JIN_T_FLOAT ||
               jin_at_op(p, "[") || jin_at_op(p, "{") ||
               (p->now.type == JIN_T_NAME && !jin_at_name(p, "else") && !jin_at_name(p, "or") &&
                !jin_at_name(p, "and"))) {
        if (jin_at_name(p, "is"))
            return jin_lex_fail(&p->lexer, "tests cannot be chained with 'is'");
        if (!parse_primary(p, &n->list) || !parse_postfix(p, &n->list))
            return false;
    }
    *node = n;
    return jin_done(p, n) && (!negated || two(p, JIN_N_NOT, JIN_EQ, n, NULL, node));
}

static bool parse_after(struct jin_parser *p, struct jin_node **node)
{
    for (;;) {
        if (jin_at_op(p, "|")) {
            if (!jin_parse_filters(p, *node, false, node))
                return false;
        } else if (jin_at_name(p, "is")) {
            if (!parse_test(p, node))
                return false;
        } else if (jin_at_op(p, "(")) {
            if (!parse_call(p, *node, node))
                return false;
        } else {
            return true;
        }
    }
}

/* ---- operators ---- */

static bool parse_unary(struct jin_parser *p, bool with_filter, struct jin_node **out)
{
    bool minus = jin_at_op(p, "-");
    if (minus || jin_at_op(p, "+")) {
        struct jin_node *n = jin_node(p, minus ? JIN_N_NEG : JIN_N_POS);
        if (n == NULL || !jin_deeper(p) || !jin_advance(p) || !parse_unary(p, false, &n->a) || !jin_done(p, n))
            return false;
        p->nest--;
        *out = n;
    } else if (!parse_primary(p, out)) {
        return false;
    }
    return parse_postfix(p, out) && (!with_filter || parse_after(p, out));
}

static bool parse_pow(struct jin_parser *p, struct jin_node **out)
{
    struct jin_node *b = NULL;
    if (!parse_unary(p, true, out))
        return false;
    while (jin_at_op(p, "**")) {
        if (!jin_advance(p) || !parse_unary(p, true, &b) || !two(p, JIN_N_BINARY, JIN_POW, *out, b, out))
            return false;
    }
    return true;
}

static bool parse_mul(struct jin_parser *p, struct jin_node **out)
{
    static const struct {
        const char *text;
        jin_op op;
    } ops[] = {{"*", JIN_MUL}, {"/", JIN_DIV}, {"//", JIN_FLOORDIV}, {"%", JIN_MOD}};
    struct jin_node *b = NULL;
    if (!parse_pow(p, out))
        return false;
    for (size_t i = 0; i < 4;) {
        if (!jin_at_op(p, ops[i].text)) {
            i++;
            continue;
        }
        if (!jin_advance(p) || !parse_pow(p, &b) || !two(p, JIN_N_BINARY, ops[i].op, *out, b, out))
            return false;
        i = 0;
    }
    return true;
}

static bool parse_concat(struct jin_parser *p, struct jin_node **out)
{
    return chain(p, JIN_N_CONCAT, "~", true, parse_mul, out);
}

static bool parse_add(struct jin_parser *p, struct jin_node **out)
{
    struct jin_node *b = NULL;
    if (!chain(p, JIN_N_ADD, "+", true, parse_concat, out))
        return false;
    while (jin_at_op(p, "-") || jin_at_op(p, "+")) {
        bool minus = jin_at_op(p, "-");
        if (!jin_advance(p) || !parse_concat(p, &b))
            return false;
        if (minus) {
            if (!two(p, JIN_N_BINARY, JIN_SUB, *out, b, out))
                return false;
            continue;
        }
        struct jin_node *n = jin_node(p, JIN_N_ADD);
        if (n == NULL)
            return false;
        n->list = *out;
        n->list->next = b;
        *out = n;
        if (!jin_done(p, n))
            return false;
    }
    return true;
}

/* The comparison that stands here, or -1; takes it. */
static bool take_comparison(struct jin_parser *p, int *op)
{
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">="};
    *op = -1;
    for (size_t i = 0; i < 6; i++) {
        if (jin_at_op(p, ops[i]))
            *op = JIN_EQ + (int)i;
    }
    if (jin_at_name(p, "in"))
        *op = JIN_IN;
    if (jin_at_name(p, "not")) {
        if (!jin_peek(p))
            return false;
        if (p->after.type == JIN_T_NAME && jin_is(p->after.text, "in")) {
            *op = JIN_NOTIN;
            if (!jin_advance(p))
                return false;
        }
    }
    return *op < 0 || jin_advance(p);
}

static bool parse_compare(struct jin_parser *p, struct jin_node **out)
{
    struct jin_node *n = NULL, **tail = NULL;
    int op;
    if (!parse_add(p, out))
        return false;
    for (;;) {
        if (!take_comparison(p, &op))
            return false;
        if (op < 0)
            break;
        if (n == NULL) {
            n = jin_node(p, JIN_N_COMPARE);
            if (n == NULL)
                return false;
            n->a = *out;
            tail = &n->list;
        }
        struct jin_node *right = NULL;
        if (!parse_add(p, &right) || !two(p, JIN_N_OPERAND, (jin_op)op, right, NULL, tail))
            return false;
        tail = &(*tail)->next;
    }
    if (n == NULL)
        return true;
    *out = n;
    return jin_done(p, n);
}

static bool parse_not(struct jin_parser *p, struct jin_node **out)
{
    if (!jin_at_name(p, "not"))
        return parse_compare(p, out);
    struct jin_node *n = jin_node(p, JIN_N_NOT);
    if (n == NULL || !jin_deeper(p) || !jin_advance(p) || !parse_not(p, &n->a))
        return false;
    p->nest--;
    *out = n;
    return jin_done(p, n);
}

static bool parse_and(struct jin_parser *p, struct jin_node **out)
{
    return chain(p, JIN_N_AND, "and", false, parse_not, out);
}

bool jin_parse_or(struct jin_parser *p, struct jin_node **out)
{
    if (!jin_deeper(p) || !chain(p, JIN_N_OR, "or", false, parse_and, out))
        return false;
    p->nest--;
    return true;
}

bool jin_parse_expr(struct jin_parser *p, struct jin_node **out)
{
    if (!jin_deeper(p) || !jin_parse_or(p, out))
        return false;
    while (jin_at_name(p, "if")) {
        struct jin_node *n = jin_node(p, JIN_N_COND);
        if (n == NULL || !jin_advance(p) || !jin_parse_or(p, &n->a))
            return false;
        n->b = *out;
        if (jin_at_name(p, "else") && (!jin_advance(p) || !jin_parse_expr(p, &n->c)))
            return false;
        *out = n;
        if (!jin_done(p, n))
            return false;
    }
    p->nest--;
    return true;
}

bool jin_parse_tuple(struct jin_parser *p, bool with_if, const char *end_name, bool parens, struct jin_node **out)
{
    struct jin_node *n = jin_node(p, JIN_N_TUPLE), **tail;
    bool comma = false;
    if (n == NULL)
        return false;
    for (tail = &n->list;; tail = &(*tail)->next) {
        if (tail != &n->list && !jin_expect_op(p, ","))
            return false;
        if (p->now.type == JIN_T_VAR_END || p->now.type == JIN_T_BLOCK_END || jin_at_op(p, ")") ||
            (end_name != NULL && jin_at_name(p, end_name)))
            break;
        if (!(with_if ? jin_parse_expr(p, tail) : jin_parse_or(p, tail)))
            return false;
        if (!jin_at_op(p, ","))
            break;
        comma = true;
    }
    if (!comma && n->list != NULL) {
        *out = n->list;
        return true;
    }
    if (!comma && !parens)
        return jin_unexpected(p);
    *out = n;
    return jin_done(p, n);
}

/* What may be assigned to: NAME, NAME.NAME (a namespace's field), or several names. */
bool jin_parse_target(struct jin_parser *p, const char *end_name, bool with_namespace, struct jin_node **out)
{
    struct jin_node *n = jin_node(p, JIN_N_TUPLE), **tail;
    size_t count = 0;
    bool comma = false, parens = jin_at_op(p, "(");
    if (n == NULL || (parens && !jin_advance(p)))
        return false;
    for (tail = &n->list; p->now.type == JIN_T_NAME && (end_name == NULL || !jin_at_name(p, end_name));) {
        struct jin_node *one = jin_node(p, JIN_N_NAME);
        static const char *const fixed[] = {"true", "false", "none", "True", "False", "None"};
        for (size_t i = 0; i < 6; i++) {
            if (jin_at_name(p, fixed[i]))
                return jin_lex_fail(&p->lexer, "'%s' cannot be assigned to", fixed[i]);
        }
        if (one == NULL || ++count > JIN_ARGS || !jin_expect_name(p, &one->name))
            return jin_lex_fail(&p->lexer, "more than %d names to assign to", JIN_ARGS);
        if (with_namespace && jin_at_op(p, ".")) {
            struct mdl_str field;
            if (!jin_advance(p) || !jin_expect_name(p, &field))
                return false;
            one->kind = JIN_N_NSREF;
            one->value = jin_str(field.data, field.len);
        }
        if (!jin_done(p, one))
            return false;
        *tail = one;
        tail = &one->next;
        if (!jin_at_op(p, ","))
            break;
        comma = true;
        if (!jin_advance(p))
            return false;
    }
    if (n->list == NULL)
        return jin_unexpected(p);
    if (parens && !jin_expect_op(p, ")"))
        return false;
    *out = comma ? n : n->list;
    return !comma || jin_done(p, n);
}
