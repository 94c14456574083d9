/* stmt.c - tokens to statement nodes, and the whole of a template.
 * Known: if, for (with "if"), set (also as a block, and of a namespace's field), macro, call, filter, with, break, continue,
 * and generation, which marks the assistant's words for training and is passed through. Tags that reach for other templates
 * (include, import, extends, block) have nothing to reach for here and are refused, as is a recursive loop.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static bool take_name(struct jin_parser *p, const char *name, bool *taken)
{
    *taken = jin_at_name(p, name);
    return !*taken || jin_advance(p);
}

static bool end_tag(struct jin_parser *p)
{
    return p->now.type == JIN_T_BLOCK_END ? jin_advance(p) : jin_unexpected(p);
}

/* The rest of a tag, then statements up to one of the ends; stands on the end's name. */
static bool body(struct jin_parser *p, const char *const *ends, struct jin_node **out)
{
    if (jin_at_op(p, ":") && !jin_advance(p))
        return false;
    return end_tag(p) && jin_parse_body(p, ends, out);
}

static bool last_body(struct jin_parser *p, const char *end, struct jin_node **out)
{
    const char *const ends[] = {end, NULL};
    return body(p, ends, out) && jin_advance(p);
}

static bool parse_if(struct jin_parser *p, struct jin_node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    bool more = true, last = false;
    n->kind = JIN_N_IF;
    for (struct jin_node **tail = &n->list; more; tail = &(*tail)->next) {
        struct jin_node *b = jin_node(p, JIN_N_BRANCH);
        if (b == NULL || (!last && !jin_parse_tuple(p, false, NULL, false, &b->a)))
            return false;
        *tail = b;
        if (last)
            return last_body(p, "endif", &b->list) && jin_done(p, b);
        if (!body(p, ends, &b->list) || !jin_done(p, b))
            return false;
        last = jin_at_name(p, "else");
        more = !jin_at_name(p, "endif");
        if (!jin_advance(p))
            return false;
    }
    return true;
}

static bool parse_for(struct jin_parser *p, struct jin_node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    bool has_test, ended;
    n->kind = JIN_N_FOR;
    if (!jin_parse_target(p, "in", false, &n->a))
        return false;
    if (!jin_at_name(p, "in"))
        return jin_unexpected(p);
    if (!jin_advance(p) || !jin_parse_tuple(p, false, "recursive", false, &n->b) || !take_name(p, "if", &has_test))
        return false;
    if (has_test && !jin_parse_expr(p, &n->c))
        return false;
    if (jin_at_name(p, "recursive"))
        return jin_lex_fail(&p->lexer, "recursive loops are not supported");
    p->loops++;
    if (!body(p, ends, &n->list))
        return false;
    p->loops--;
    ended = jin_at_name(p, "endfor");
    return jin_advance(p) && (ended || last_body(p, "endfor", &n->list2));
}

static bool parse_set(struct jin_parser *p, struct jin_node *n)
{
    n->kind = JIN_N_SET;
    if (!jin_parse_target(p, NULL, true, &n->a))
        return false;
    if (jin_at_op(p, "="))
        return jin_advance(p) && jin_parse_tuple(p, true, NULL, false, &n->b);
    n->kind = JIN_N_SETBLOCK;
    return jin_parse_filters(p, NULL, false, &n->b) && last_body(p, "endset", &n->list);
}

static bool parse_params(struct jin_parser *p, struct jin_node *n)
{
    size_t count = 0;
    bool defaults = false;
    if (!jin_expect_op(p, "("))
        return false;
    for (struct jin_node **tail = &n->list; !jin_at_op(p, ")"); tail = &(*tail)->next) {
        if (count > 0 && !jin_expect_op(p, ","))
            return false;
        struct jin_node *param = jin_node(p, JIN_N_PARAM);
        if (param == NULL || !jin_expect_name(p, &param->name))
            return false;
        if (++count > JIN_ARGS)
            return jin_lex_fail(&p->lexer, "a macro has more than %d parameters", JIN_ARGS);
        if (jin_at_op(p, "=")) {
            defaults = true;
            if (!jin_advance(p) || !jin_parse_expr(p, &param->a))
                return false;
        } else if (defaults) {
            return jin_lex_fail(&p->lexer, "a parameter without default follows one with a default");
        }
        *tail = param;
        if (!jin_done(p, param))
            return false;
    }
    return jin_advance(p);
}

/* Parameters are read; the body's own use of varargs, kwargs and caller is noted. */
static bool macro_body(struct jin_parser *p, struct jin_node *n, const char *end)
{
    unsigned int loops = p->loops, uses = p->uses;
    p->loops = 0;
    p->uses = 0;
    if (!last_body(p, end, &n->list2))
        return false;
    n->op = (uint8_t)p->uses;
    p->loops = loops;
    p->uses = uses;
    return jin_done(p, n);
}

static bool parse_call_block(struct jin_parser *p, struct jin_node *n)
{
    n->kind = JIN_N_CALLBLOCK;
    n->b = jin_node(p, JIN_N_MACRO);
    if (n->b == NULL || (jin_at_op(p, "(") && !parse_params(p, n->b)) || !jin_parse_expr(p, &n->a))
        return false;
    if (n->a->kind != JIN_N_CALL)
        return jin_lex_fail(&p->lexer, "a call block needs a call");
    n->b->name = (struct mdl_str){"caller", 6};
    return macro_body(p, n->b, "endcall");
}

static bool parse_with(struct jin_parser *p, struct jin_node *n)
{
    n->kind = JIN_N_WITH;
    for (struct jin_node **tail = &n->list; p->now.type != JIN_T_BLOCK_END; tail = &(*tail)->next) {
        if (tail != &n->list && !jin_expect_op(p, ","))
            return false;
        *tail = jin_node(p, JIN_N_PAIR);
        if (*tail == NULL || !jin_parse_target(p, NULL, false, &(*tail)->a) || !jin_expect_op(p, "=") ||
            !jin_parse_expr(p, &(*tail)->b) || !jin_done(p, *tail))
            return false;
    }
    return last_body(p, "endwith", &n->list2);
}

static bool parse_jump(struct jin_parser *p, struct jin_node *n, jin_kind kind)
{
    n->kind = (uint8_t)kind;
    if (p->loops == 0)
        return jin_lex_fail(&p->lexer, "'%s' stands outside of a loop", kind == JIN_N_BREAK ? "break" : "continue");
    return true;
}

static bool statement(struct jin_parser *p, struct jin_node *n, struct mdl_str word)
{
    if (jin_is(word, "if"))
        return parse_if(p, n);
    if (jin_is(word, "for"))
        return parse_for(p, n);
    if (jin_is(word, "set"))
        return parse_set(p, n);
    if (jin_is(word, "macro")) {
        n->kind = JIN_N_MACRO;
        return jin_expect_name(p, &n->name) && parse_params(p, n) && macro_body(p, n, "endmacro");
    }
    if (jin_is(word, "call"))
        return parse_call_block(p, n);
    if (jin_is(word, "filter")) {
        n->kind = JIN_N_FILTERBLOCK;
        return jin_parse_filters(p, NULL, true, &n->b) && last_body(p, "endfilter", &n->list);
    }
    if (jin_is(word, "with"))
        return parse_with(p, n);
    if (jin_is(word, "generation")) {
        n->kind = JIN_N_SCOPE;
        return last_body(p, "endgeneration", &n->list);
    }
    if (jin_is(word, "break"))
        return parse_jump(p, n, JIN_N_BREAK);
    if (jin_is(word, "continue"))
        return parse_jump(p, n, JIN_N_CONTINUE);
    return jin_lex_fail(&p->lexer, "the tag '%.*s' is not known here", word.len < 60 ? (int)word.len : 60, word.data);
}

/* After "{%", on the tag's name. */
static bool parse_statement(struct jin_parser *p, struct jin_node **out)
{
    struct mdl_str word;
    struct jin_node *n = jin_node(p, JIN_N_SCOPE);
    if (n == NULL || !jin_expect_name(p, &word))
        return false;
    *out = n;
    return jin_deeper(p) && statement(p, n, word) && jin_done(p, n) && (p->nest--, true) && end_tag(p);
}

static bool parse_output(struct jin_parser *p, struct jin_node **out)
{
    struct jin_node *n = jin_node(p, JIN_N_OUTPUT);
    if (n == NULL || !jin_advance(p) || !jin_parse_tuple(p, true, NULL, false, &n->a))
        return false;
    *out = n;
    if (p->now.type != JIN_T_VAR_END)
        return jin_unexpected(p);
    return jin_advance(p) && jin_done(p, n);
}

static bool is_end(const struct jin_parser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++) {
        if (jin_at_name(p, *ends))
            return true;
    }
    return false;
}

bool jin_parse_body(struct jin_parser *p, const char *const *ends, struct jin_node **out)
{
    struct jin_node **tail = out;
    while (p->now.type != JIN_T_EOF) {
        if (p->now.type == JIN_T_DATA) {
            struct jin_node *n = jin_node(p, JIN_N_DATA);
            if (n == NULL)
                return false;
            n->value = jin_str(p->now.text.data, p->now.text.len);
            *tail = n;
            if (!jin_advance(p) || !jin_done(p, n))
                return false;
        } else if (p->now.type == JIN_T_VAR_BEGIN) {
            if (!parse_output(p, tail))
                return false;
        } else {
            if (p->now.type != JIN_T_BLOCK_BEGIN)
                return jin_unexpected(p);
            if (!jin_advance(p))
                return false;
            if (is_end(p, ends))
                return true;
            if (!parse_statement(p, tail))
                return false;
        }
        tail = &(*tail)->next;
    }
    if (ends == NULL)
        return true;
    const char *const *last = ends;
    while (last[1] != NULL)
        last++;
    return jin_lex_fail(&p->lexer, "the template ends where '%s' is missing", *last);
}

/* A copy with \n for line ends and without the last one. */
static char *normal(struct kvs_arena *a, const char *text, size_t *size)
{
    char *copy = kvs_arena_dup(a, text, *size);
    size_t n = 0;
    if (copy == NULL)
        return NULL;
    for (size_t i = 0; i < *size; i++) {
        if (text[i] == '\r' && i + 1 < *size && text[i + 1] == '\n')
            continue;
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    *size = n > 0 && copy[n - 1] == '\n' ? n - 1 : n;
    return copy;
}

kvs_status jin_parse(const char *text, size_t size, struct jin_template **out, struct kvs_error *err)
{
    if (size > JIN_TEXT_MAX)
        return kvs_fail(err, KVS_SELF_MODEL, "it has %zu bytes, more than %d", size, JIN_TEXT_MAX);
    if (!kvs_utf8_valid(text, size))
        return kvs_fail(err, KVS_SELF_MODEL, "it is not valid UTF-8");
    struct jin_template *t = calloc(1, sizeof *t);
    if (t == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the chat template");
    kvs_arena_init(&t->arena, JIN_PARSE_ARENA);
    struct jin_parser p = {.lexer = {.arena = &t->arena, .err = err, .size = size, .line = 1, .line_starting = true}};
    p.lexer.text = normal(&t->arena, text, &p.lexer.size);
    if (p.lexer.text == NULL) {
        jin_template_destroy(t);
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the chat template");
    }
    if (jin_advance(&p) && jin_parse_body(&p, NULL, &t->body)) {
        *out = t;
        return KVS_OK;
    }
    KVS_ASSERT(p.lexer.status != KVS_OK);
    jin_template_destroy(t);
    return p.lexer.status;
}

void jin_template_destroy(struct jin_template *t)
{
    if (t == NULL)
        return;
    kvs_arena_fini(&t->arena);
    free(t);
}
