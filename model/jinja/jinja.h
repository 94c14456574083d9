/* jinja.h - the parts of the chat template interpreter (private to model/).
 *   lexer.c     text -> tokens, with Jinja2's whitespace control (trim_blocks, lstrip_blocks, "-", "+")
 *   expr.c      tokens -> expression nodes        stmt.c      tokens -> statement nodes
 *   value.c     what a template computes with     text.c      values as text: str(), repr(), JSON
 *   eval.c      expressions                       exec.c      statements, scopes, macros
 *   ops.c       arithmetic and comparison         access.c    attributes, items, slices
 *   filters.c, filters_seq.c, tests.c, methods.c, format.c    the names that templates may call
 * Template and data are both hostile: every node and value lies in an arena with a bound, every piece of work is charged to a
 * budget of steps, recursion has a depth, and there is nothing to reach but the values handed in. Values never change once
 * made, except a namespace's fields and (inside the interpreter) a dict that is being built; so strings and slices share bytes.
 * A failing function has put the cause into run->err and returns false.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_JINJA_JINJA_H
#define KVS_MODEL_JINJA_JINJA_H

#include "base/arena.h"
#include "base/buf.h"
#include "model/gguf.h"

enum {
    JIN_TEXT_MAX = 512 * 1024,         /* bytes of a template */
    JIN_PARSE_ARENA = 6 * 1024 * 1024, /* its nodes */
    JIN_RUN_ARENA = 96 * 1024 * 1024,  /* all values of one rendering */
    JIN_STEPS = 20 * 1000 * 1000,      /* of one rendering; a step is a node, a comparison, or some bytes moved */
    JIN_SLICE = 50 * 1000,             /* of them between two looks at the deadline */
    JIN_NEST = 64,                     /* brackets and blocks inside each other */
    JIN_NODE_DEPTH = 160,              /* height of the tree; a.b.c.d and x|f|g grow it too */
    JIN_DEPTH = 600,                   /* evaluation inside evaluation; macros add theirs */
    JIN_DATA_DEPTH = 100,              /* of values that come from outside */
    JIN_ARGS = 12,                     /* of one call, each kind */
    JIN_RANGE_MAX = 100000,            /* as Jinja2's sandbox */
};

/* ---- values ---- */

typedef enum jin_type {
    JIN_UNDEFINED, JIN_NONE, JIN_BOOL, JIN_INT, JIN_FLOAT, JIN_STR, JIN_LIST, JIN_DICT, JIN_RANGE, JIN_NAMESPACE, JIN_MACRO,
    JIN_FUNCTION, JIN_METHOD, JIN_LOOP,
} jin_type;

struct jin_value {
    uint8_t type;
    bool markup;  /* JIN_STR: came through |safe or |escape; "+" then escapes the other side, as markupsafe does */
    uint32_t len; /* JIN_STR: bytes */
    union {
        bool b;
        int64_t i;
        double f;
        const char *text; /* UTF-8, not NUL-terminated */
        struct jin_list *list;
        struct jin_dict *dict; /* JIN_DICT, JIN_NAMESPACE */
        const struct jin_undef *undef;
        const struct jin_range *range;
        const struct jin_macro *macro;
        const struct jin_method *method;
        const struct jin_loop *loop;
        int function; /* index into the globals' table */
    } u;
};

typedef enum jin_list_kind { JIN_A_LIST, JIN_A_TUPLE, JIN_ITEMS, JIN_KEYS, JIN_VALUES, JIN_ONCE } jin_list_kind;

struct jin_list {
    struct jin_value *items;
    size_t count;
    jin_list_kind kind; /* JIN_ONCE: what Python has a generator for; spent after one pass */
    bool spent;
};

struct jin_pair {
    struct jin_value key, value;
};

struct jin_dict {
    struct jin_pair *pairs; /* in order of insertion */
    size_t count, cap;
};

/* Why a value is undefined; the message is made only when somebody trips over it. */
struct jin_undef {
    const char *owner; /* type that lacks it; NULL: a name, or `name` is the whole message */
    struct jin_value name;
    bool message;
};

struct jin_range {
    int64_t start, stop, step;
    size_t count;
};

struct jin_method {
    struct jin_value self;
    struct mdl_str name;
};

struct jin_loop {
    const struct jin_value *items;
    size_t count, index; /* index0 */
    struct jin_value *changed; /* what loop.changed() saw last; its type is JIN_LOOP before the first */
};

struct jin_macro {
    const struct jin_node *node;
    struct jin_scope *scope; /* where it was defined */
};

/* ---- nodes ---- */

typedef enum jin_kind {
    JIN_N_CONST, JIN_N_NAME, JIN_N_ADD, JIN_N_BINARY, JIN_N_CONCAT, JIN_N_AND, JIN_N_OR, JIN_N_NOT, JIN_N_NEG, JIN_N_POS,
    JIN_N_COMPARE, JIN_N_OPERAND, JIN_N_COND, JIN_N_ATTR, JIN_N_ITEM, JIN_N_SLICE, JIN_N_CALL, JIN_N_KWARG, JIN_N_FILTER,
    JIN_N_TEST, JIN_N_LIST, JIN_N_TUPLE, JIN_N_DICT, JIN_N_PAIR, JIN_N_NSREF,
    JIN_N_DATA, JIN_N_OUTPUT, JIN_N_IF, JIN_N_BRANCH, JIN_N_FOR, JIN_N_SET, JIN_N_SETBLOCK, JIN_N_MACRO, JIN_N_PARAM,
    JIN_N_CALLBLOCK, JIN_N_FILTERBLOCK, JIN_N_WITH, JIN_N_SCOPE, JIN_N_BREAK, JIN_N_CONTINUE,
} jin_kind;

typedef enum jin_op { JIN_SUB, JIN_MUL, JIN_DIV, JIN_FLOORDIV, JIN_MOD, JIN_POW,
                      JIN_EQ, JIN_NE, JIN_LT, JIN_LE, JIN_GT, JIN_GE, JIN_IN, JIN_NOTIN } jin_op;

enum { JIN_USES_VARARGS = 1, JIN_USES_KWARGS = 2, JIN_USES_CALLER = 4 };

/* What the fields hold, by kind:
 *   CONST DATA value        NAME name              ADD CONCAT AND OR LIST TUPLE list        BINARY op a b   NOT NEG POS a
 *   COMPARE a list(OPERAND op a)                   COND a(test) b(then) c(else or NULL)     ATTR a name     ITEM a b
 *   SLICE a b c (each may be NULL)                 CALL FILTER TEST a name list(arguments) list2(KWARG name a)
 *   DICT list(PAIR a b)     NSREF name value       OUTPUT a      IF list(BRANCH a(NULL: else) list)
 *   FOR a(target) b(sequence) c(test or NULL) list list2(else)   SET a b                    SETBLOCK a b(filter or NULL) list
 *   MACRO name list(PARAM name a(default)) list2(body) op(uses)  CALLBLOCK a(call) b(MACRO) FILTERBLOCK b list
 *   WITH list(PAIR) list2   SCOPE list */
struct jin_node {
    uint8_t kind, op;
    uint16_t depth;
    uint32_t line;
    struct mdl_str name;
    struct jin_value value;
    struct jin_node *a, *b, *c, *list, *list2;
    struct jin_node *next; /* in the list that it is part of */
};

struct jin_template {
    struct kvs_arena arena;
    struct jin_node *body;
};

/* ---- lexer ---- */

typedef enum jin_token_type {
    JIN_T_DATA, JIN_T_VAR_BEGIN, JIN_T_VAR_END, JIN_T_BLOCK_BEGIN, JIN_T_BLOCK_END, JIN_T_NAME, JIN_T_STRING, JIN_T_INT,
    JIN_T_FLOAT, JIN_T_OP, JIN_T_EOF,
} jin_token_type;

struct jin_token {
    jin_token_type type;
    uint32_t line;
    struct mdl_str text; /* data, name, operator, decoded string */
    struct jin_value number;
};

struct jin_lexer {
    struct kvs_arena *arena;
    struct kvs_error *err;
    kvs_status status;
    const char *text; /* line ends are \n; no last one */
    size_t size, at;
    uint32_t line;
    enum { JIN_IN_TEXT, JIN_IN_VAR, JIN_IN_BLOCK } where;
    bool line_starting;     /* the last match ended a line */
    bool tag_due;           /* the text before a tag is out, the tag is next */
    char stack[JIN_NEST];   /* open brackets */
    size_t open;
};

bool jin_lex(struct jin_lexer *l, struct jin_token *out); /* false: status, err */
bool jin_lex_fail(struct jin_lexer *l, const char *fmt, ...) KVS_PRINTF(2, 3);
bool jin_lex_memory(struct jin_lexer *l, size_t wanted);

/* ---- parser ---- */

struct jin_parser {
    struct jin_lexer lexer;
    struct jin_token now, after;
    bool has_after;
    unsigned int nest;
    unsigned int loops; /* around the current place, inside the macro */
    unsigned int uses;  /* varargs, kwargs, caller: names seen in the current macro */
};

bool jin_advance(struct jin_parser *p);
bool jin_peek(struct jin_parser *p);
bool jin_at_op(const struct jin_parser *p, const char *op);
bool jin_at_name(const struct jin_parser *p, const char *name);
bool jin_expect_op(struct jin_parser *p, const char *op);
bool jin_expect_name(struct jin_parser *p, struct mdl_str *out); /* any name */
bool jin_deeper(struct jin_parser *p);
struct jin_node *jin_node(struct jin_parser *p, jin_kind kind);
bool jin_done(struct jin_parser *p, struct jin_node *n); /* sets depth from the parts; false: too high */
bool jin_unexpected(struct jin_parser *p);
bool jin_parse_expr(struct jin_parser *p, struct jin_node **out);
bool jin_parse_or(struct jin_parser *p, struct jin_node **out); /* an expression without "if" */
bool jin_parse_tuple(struct jin_parser *p, bool with_if, const char *end_name, bool parens, struct jin_node **out);
bool jin_parse_target(struct jin_parser *p, const char *end_name, bool with_namespace, struct jin_node **out);
bool jin_parse_filters(struct jin_parser *p, struct jin_node *input, bool start_inline, struct jin_node **out);
bool jin_parse_body(struct jin_parser *p, const char *const *ends, struct jin_node **out); /* ends: NULL-terminated; NULL: file */

kvs_status jin_parse(const char *text, size_t size, struct jin_template **out, struct kvs_error *err);
void jin_template_destroy(struct jin_template *t);

/* ---- run ---- */

struct jin_var {
    struct mdl_str name;
    struct jin_value value;
    struct jin_var *next;
};

struct jin_scope {
    struct jin_scope *parent;
    struct jin_var *vars;
};

struct jin_run {
    struct kvs_arena arena;
    struct kvs_buf *out; /* also where every string is put together before it is copied to the arena */
    struct kvs_error *err;
    kvs_status status;
    uint64_t steps_left;  /* of this slice */
    uint64_t steps_after; /* beyond it */
    bool (*expired)(void *user); /* NULL: no deadline; asked between slices */
    void *expired_user;
    unsigned int depth;
    uint32_t line;
    int64_t now_s;
    struct jin_scope *scope;
    struct jin_scope globals; /* messages, tools, ... */
};

struct jin_args {
    size_t count, named;
    struct jin_value *values, *named_values;
    struct mdl_str *names;
};

bool jin_fail(struct jin_run *r, const char *fmt, ...) KVS_PRINTF(2, 3); /* KVS_REQ_INVALID, with the line */
bool jin_fail_undefined(struct jin_run *r, const struct jin_value *v);
bool jin_next_slice(struct jin_run *r, uint64_t n); /* takes n steps from the next one; false: too many, or too late */
static inline bool jin_step(struct jin_run *r, uint64_t n)
{
    if (r->steps_left < n)
        return jin_next_slice(r, n);
    r->steps_left -= n;
    return true;
}
bool jin_enter(struct jin_run *r); /* one deeper; jin_leave when it was true */
static inline void jin_leave(struct jin_run *r) { r->depth--; }
void *jin_alloc(struct jin_run *r, size_t count, size_t size);
bool jin_put(struct jin_run *r, const void *bytes, size_t n);
bool jin_puts(struct jin_run *r, const char *text);
bool jin_captured(struct jin_run *r, size_t mark, struct jin_value *out); /* takes back what was put since mark */

/* value.c */
static inline struct jin_value jin_none(void) { return (struct jin_value){.type = JIN_NONE}; }
static inline struct jin_value jin_bool(bool b) { return (struct jin_value){.type = JIN_BOOL, .u.b = b}; }
static inline struct jin_value jin_int(int64_t i) { return (struct jin_value){.type = JIN_INT, .u.i = i}; }
static inline struct jin_value jin_float(double f) { return (struct jin_value){.type = JIN_FLOAT, .u.f = f}; }
static inline struct jin_value jin_str(const char *p, size_t n)
{
    return (struct jin_value){.type = JIN_STR, .len = (uint32_t)n, .u.text = p};
}
static inline struct mdl_str jin_view(const struct jin_value *v) { return (struct mdl_str){v->u.text, v->len}; }
struct jin_value jin_text(const char *text);
bool jin_is(struct mdl_str s, const char *text);
static inline bool jin_same(struct mdl_str a, struct mdl_str b)
{
    return a.len == b.len && (a.data == b.data || __builtin_memcmp(a.data, b.data, a.len) == 0);
}
static inline bool jin_is_number(const struct jin_value *v) { return v->type == JIN_BOOL || v->type == JIN_INT || v->type == JIN_FLOAT; }
static inline bool jin_is_whole(const struct jin_value *v) { return v->type == JIN_BOOL || v->type == JIN_INT; }
static inline int64_t jin_whole(const struct jin_value *v) { return v->type == JIN_BOOL ? v->u.b : v->u.i; }
static inline double jin_real(const struct jin_value *v) { return v->type == JIN_FLOAT ? v->u.f : (double)jin_whole(v); }
const char *jin_type_name(const struct jin_value *v); /* as Python calls it */
bool jin_undefined_name(struct jin_run *r, struct mdl_str name, struct jin_value *out);
bool jin_undefined_of(struct jin_run *r, const struct jin_value *owner, const struct jin_value *name, struct jin_value *out);
bool jin_undefined_text(struct jin_run *r, const char *message, struct jin_value *out);
bool jin_list_new(struct jin_run *r, size_t count, jin_list_kind kind, struct jin_value *out); /* items undefined, to be filled */
bool jin_dict_new(struct jin_run *r, struct jin_value *out);
bool jin_dict_find(struct jin_run *r, const struct jin_dict *d, const struct jin_value *key, struct jin_value **out); /* NULL: no */
bool jin_dict_set(struct jin_run *r, struct jin_dict *d, const struct jin_value *key, const struct jin_value *value);
bool jin_dict_view(struct jin_run *r, const struct jin_dict *d, jin_list_kind kind, struct jin_value *out);
bool jin_truthy(const struct jin_value *v);
bool jin_iterable(const struct jin_value *v);
bool jin_iterate(struct jin_run *r, const struct jin_value *v, const struct jin_value **items_out, size_t *count_out);
bool jin_length(struct jin_run *r, const struct jin_value *v, int64_t *out);

/* text.c: strings in characters, and values as text */
size_t jin_char(const char *p, size_t n, uint32_t *cp_out); /* length of the character at p; n > 0 */
size_t jin_count_chars(struct mdl_str s);
size_t jin_offset(struct mdl_str s, size_t chars);
bool jin_is_space(uint32_t cp);
struct mdl_str jin_strip(struct mdl_str s, const struct mdl_str *chars, bool left, bool right);
bool jin_put_value(struct jin_run *r, const struct jin_value *v); /* str() */
bool jin_put_repr(struct jin_run *r, const struct jin_value *v);
bool jin_put_float(struct jin_run *r, double f);
bool jin_to_str(struct jin_run *r, const struct jin_value *v, struct jin_value *out);
struct jin_json {
    struct mdl_str indent; /* of one level; data NULL: on one line */
    struct mdl_str item, key; /* separators */
    bool ascii, sorted;
};
bool jin_put_json(struct jin_run *r, const struct jin_value *v, const struct jin_json *how, unsigned int level);

/* ops.c */
bool jin_equal(struct jin_run *r, const struct jin_value *a, const struct jin_value *b, bool *out);
bool jin_order(struct jin_run *r, const struct jin_value *a, const struct jin_value *b, jin_op op, bool *out);
bool jin_compare(struct jin_run *r, jin_op op, const struct jin_value *a, const struct jin_value *b, bool *out);
bool jin_contains(struct jin_run *r, const struct jin_value *all, const struct jin_value *one, bool *out);
bool jin_add(struct jin_run *r, const struct jin_value *a, const struct jin_value *b, struct jin_value *out);
bool jin_binary(struct jin_run *r, jin_op op, const struct jin_value *a, const struct jin_value *b, struct jin_value *out);
bool jin_escape(struct jin_run *r, const struct jin_value *v, struct jin_value *out); /* markup; HTML's five characters */

/* access.c */
bool jin_attribute(struct jin_run *r, const struct jin_value *v, struct mdl_str name, struct jin_value *out); /* v.name */
bool jin_item(struct jin_run *r, const struct jin_value *v, const struct jin_value *key, struct jin_value *out);
bool jin_slice(struct jin_run *r, const struct jin_value *v, const struct jin_value bounds[3], struct jin_value *out);
bool jin_path(struct jin_run *r, const struct jin_value *v, const struct jin_value *path, struct jin_value *out); /* "a.b.0" */

/* what may be called */
const struct jin_value *jin_arg(const struct jin_args *a, size_t position, const char *name); /* NULL: not given */
bool jin_take(struct jin_run *r, const char *what, const struct jin_args *a, size_t max, const char *const *names);
bool jin_filter(struct jin_run *r, struct mdl_str name, const struct jin_value *v, const struct jin_args *a, struct jin_value *out);
bool jin_filter_seq(struct jin_run *r, struct mdl_str name, const struct jin_value *v, const struct jin_args *a, struct jin_value *out,
                    bool *found);
bool jin_test(struct jin_run *r, struct mdl_str name, const struct jin_value *v, const struct jin_args *a, bool *out);
bool jin_has_method(const struct jin_value *v, struct mdl_str name, bool *safe_out);
bool jin_call_method(struct jin_run *r, const struct jin_method *m, const struct jin_args *a, struct jin_value *out);
bool jin_call_str_method(struct jin_run *r, const struct jin_method *m, const struct jin_args *a, struct jin_value *out);
bool jin_percent(struct jin_run *r, struct mdl_str fmt, const struct jin_value *args, size_t count, struct jin_value *out);
bool jin_braces(struct jin_run *r, struct mdl_str fmt, const struct jin_args *a, struct jin_value *out);
bool jin_change_case(struct jin_run *r, struct mdl_str s, char how, struct jin_value *out); /* u l c(apitalize) t(itle) s(wap) */
uint32_t jin_upper(uint32_t cp);
uint32_t jin_lower(uint32_t cp);
bool jin_replace(struct jin_run *r, struct mdl_str s, struct mdl_str from, struct mdl_str to, int64_t count, struct jin_value *out);
bool jin_join(struct jin_run *r, const struct jin_value *items, size_t count, struct mdl_str with, struct jin_value *out);
int jin_function(struct mdl_str name); /* -1: none */
bool jin_call_function(struct jin_run *r, int function, const struct jin_args *a, struct jin_value *out);

/* eval.c, exec.c */
bool jin_eval(struct jin_run *r, const struct jin_node *n, struct jin_value *out);
bool jin_eval_filter(struct jin_run *r, const struct jin_node *n, const struct jin_value *input, struct jin_value *out);
bool jin_eval_args(struct jin_run *r, const struct jin_node *n, struct jin_args *out);
bool jin_call_macro(struct jin_run *r, const struct jin_macro *m, const struct jin_args *a, const struct jin_value *caller,
                    struct jin_value *out);
bool jin_call_value(struct jin_run *r, const struct jin_value *f, const struct jin_args *a, struct jin_value *out);
bool jin_set_var(struct jin_run *r, struct jin_scope *s, struct mdl_str name, const struct jin_value *v);
bool jin_lookup(struct jin_run *r, struct mdl_str name, struct jin_value *out);

/* Body into run->out. The run is prepared by jin_run_init and given its globals; what was put is taken back on failure. */
void jin_run_init(struct jin_run *r, struct kvs_buf *out, int64_t now_s, struct kvs_error *err);
void jin_run_fini(struct jin_run *r);
kvs_status jin_render(struct jin_run *r, const struct jin_template *t);

#endif
