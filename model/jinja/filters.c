/* filters.c - filters of one value: text, numbers, JSON. Those that walk a sequence are in filters_seq.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct jin_value *jin_arg(const struct jin_args *a, size_t position, const char *name)
{
    if (position < a->count)
        return &a->values[position];
    for (size_t i = 0; i < a->named; i++) {
        if (jin_is(a->names[i], name))
            return &a->named_values[i];
    }
    return NULL;
}

/* Not more arguments than max, and none by a name that is not in the list. */
bool jin_take(struct jin_run *r, const char *what, const struct jin_args *a, size_t max, const char *const *names)
{
    if (a->count > max)
        return jin_fail(r, "%s takes at most %zu arguments", what, max);
    for (size_t i = 0; i < a->named; i++) {
        bool known = false;
        for (size_t k = 0; k < max; k++)
            known = known || jin_is(a->names[i], names[k]);
        if (!known)
            return jin_fail(r, "%s has no argument '%.*s'", what, a->names[i].len < 60 ? (int)a->names[i].len : 60,
                            a->names[i].data);
    }
    return true;
}

static bool text_arg(struct jin_run *r, const struct jin_args *a, size_t n, const char *name, const char *otherwise,
                     struct mdl_str *out)
{
    const struct jin_value *v = jin_arg(a, n, name);
    struct jin_value s;
    *out = (struct mdl_str){otherwise, strlen(otherwise)};
    if (v == NULL)
        return true;
    if (!jin_to_str(r, v, &s))
        return false;
    *out = jin_view(&s);
    return true;
}

static bool number_arg(struct jin_run *r, const struct jin_args *a, size_t n, const char *name, int64_t otherwise,
                       int64_t *out)
{
    const struct jin_value *v = jin_arg(a, n, name);
    *out = otherwise;
    if (v == NULL)
        return true;
    if (!jin_is_whole(v))
        return v->type == JIN_UNDEFINED ? jin_fail_undefined(r, v)
                                        : jin_fail(r, "a whole number is needed, not %s", jin_type_name(v));
    *out = jin_whole(v);
    return true;
}

static bool flag_arg(const struct jin_args *a, size_t n, const char *name)
{
    const struct jin_value *v = jin_arg(a, n, name);
    return v != NULL && jin_truthy(v);
}

bool jin_replace(struct jin_run *r, struct mdl_str s, struct mdl_str from, struct mdl_str to, int64_t count,
                 struct jin_value *out)
{
    size_t mark = r->out->len;
    if (!jin_step(r, (s.len + from.len) / 64))
        return false;
    for (int64_t k = 0; count < 0 || k < count; k++) {
        const char *hit = from.len == 0 ? s.data : s.len < from.len ? NULL : memmem(s.data, s.len, from.data, from.len);
        if (hit == NULL)
            break;
        if (!jin_step(r, 1) || !jin_put(r, s.data, (size_t)(hit - s.data)) || !jin_put(r, to.data, to.len))
            return false;
        if (from.len == 0) { /* before each character, and at the end */
            size_t n = s.len > 0 ? jin_char(s.data, s.len, NULL) : 0;
            if (n == 0)
                break;
            if (!jin_put(r, s.data, n))
                return false;
            s = (struct mdl_str){s.data + n, s.len - n};
            continue;
        }
        s = (struct mdl_str){hit + from.len, s.len - (size_t)(hit - s.data) - from.len};
    }
    return jin_put(r, s.data, s.len) && jin_captured(r, mark, out);
}

static bool f_replace(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"old", "new", "count"};
    struct mdl_str from, to;
    struct jin_value s;
    int64_t count = -1;
    const struct jin_value *c = jin_arg(a, 2, "count");
    if (!jin_take(r, "replace", a, 3, names) || !jin_to_str(r, v, &s) || !text_arg(r, a, 0, "old", "", &from) ||
        !text_arg(r, a, 1, "new", "", &to) ||
        (c != NULL && c->type != JIN_NONE && !number_arg(r, a, 2, "count", -1, &count)))
        return false;
    if (jin_arg(a, 0, "old") == NULL || jin_arg(a, 1, "new") == NULL)
        return jin_fail(r, "replace takes two strings");
    return jin_replace(r, jin_view(&s), from, to, count, out);
}

static bool f_trim(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"chars"};
    const struct jin_value *c = jin_arg(a, 0, "chars");
    struct jin_value s;
    struct mdl_str chars;
    if (!jin_take(r, "trim", a, 1, names) || !jin_to_str(r, v, &s) || !text_arg(r, a, 0, "chars", "", &chars) ||
        !jin_step(r, s.len / 64 * (1 + chars.len / 16)))
        return false;
    struct mdl_str t = jin_strip(jin_view(&s), c != NULL && c->type != JIN_NONE ? &chars : NULL, true, true);
    *out = jin_str(t.data, t.len);
    out->markup = s.markup;
    return true;
}

static bool f_case(struct jin_run *r, const struct jin_value *v, char how, struct jin_value *out)
{
    struct jin_value s;
    if (!jin_to_str(r, v, &s) || !jin_change_case(r, jin_view(&s), how, out))
        return false;
    out->markup = s.markup;
    return true;
}

/* Jinja2's own: the first letter of each word, where words end at spaces, "-" and opening brackets. */
static bool f_title(struct jin_run *r, const struct jin_value *v, struct jin_value *out)
{
    struct jin_value s, word;
    if (!jin_to_str(r, v, &s))
        return false;
    size_t mark = r->out->len;
    for (size_t i = 0; i < s.len;) {
        size_t from = i;
        bool inside = false, edge = false;
        while (i < s.len) {
            uint32_t c;
            size_t n = jin_char(s.u.text + i, s.len - i, &c);
            edge = jin_is_space(c) || (c < 0x80 && c != 0 && memchr("-({[<", (int)c, 5) != NULL);
            if (edge && inside)
                break;
            if (edge)
                from = i + n;
            if (edge && !jin_put(r, s.u.text + i, n))
                return false;
            inside = !edge;
            i += n;
        }
        if (inside &&
            (!jin_change_case(r, (struct mdl_str){s.u.text + from, i - from}, 'c', &word) || !jin_put_value(r, &word)))
            return false;
    }
    return jin_step(r, s.len / 8) && jin_captured(r, mark, out);
}

static bool f_indent(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"width", "first", "blank"};
    const struct jin_value *w = jin_arg(a, 0, "width");
    bool first = flag_arg(a, 1, "first"), blank = flag_arg(a, 2, "blank");
    struct mdl_str by = {"", 0};
    struct jin_value s, spaces, n;
    if (!jin_take(r, "indent", a, 3, names))
        return false;
    if (v->type != JIN_STR)
        return v->type == JIN_UNDEFINED ? jin_fail_undefined(r, v) : jin_fail(r, "indent needs a string");
    s = *v;
    if (w != NULL && w->type == JIN_STR) {
        by = jin_view(w);
    } else {
        int64_t width;
        struct jin_value one = jin_text(" ");
        if (!number_arg(r, a, 0, "width", 4, &width))
            return false;
        n = jin_int(width);
        if (!jin_binary(r, JIN_MUL, &one, &n, &spaces))
            return false;
        by = jin_view(&spaces);
    }
    size_t mark = r->out->len;
    for (size_t i = 0, line = 0; i <= s.len; line++) {
        const char *end = i < s.len ? memchr(s.u.text + i, '\n', s.len - i) : NULL;
        size_t len = end != NULL ? (size_t)(end - s.u.text) - i : s.len - i;
        bool wanted = line == 0 ? first : blank || len > 0;
        if ((line > 0 && !jin_puts(r, "\n")) || (wanted && !jin_put(r, by.data, by.len)) ||
            !jin_put(r, s.u.text + i, len) || !jin_step(r, 1))
            return false;
        i += len + 1;
    }
    return jin_captured(r, mark, out);
}

static bool f_default(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"default_value", "boolean"};
    const struct jin_value *d = jin_arg(a, 0, "default_value");
    if (!jin_take(r, "default", a, 2, names))
        return false;
    if (v->type == JIN_UNDEFINED || (flag_arg(a, 1, "boolean") && !jin_truthy(v)))
        *out = d != NULL ? *d : jin_text("");
    else
        *out = *v;
    return true;
}

/* ---- numbers ---- */

/* Text as a number, spaces around it allowed; false: it is none. */
static bool read_number(struct mdl_str s, int base, struct jin_value *out)
{
    char buf[64];
    char *end;
    s = jin_strip(s, NULL, true, true);
    if (s.len == 0 || s.len >= sizeof buf)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.data[i];
        bool word = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        if (!word && c != '+' && c != '-' && c != '.')
            return false;
        buf[i] = c;
    }
    buf[s.len] = '\0';
    if (base == 0) {
        if (memchr(buf, 'x', s.len) != NULL || memchr(buf, 'X', s.len) != NULL)
            return false;
        *out = jin_float(strtod(buf, &end));
    } else {
        long long v = strtoll(buf, &end, base);
        if (v == INT64_MAX || v == INT64_MIN)
            return false;
        *out = jin_int(v);
    }
    return *end == '\0' && end != buf;
}

static bool f_int(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"default", "base"};
    struct jin_value n;
    int64_t base;
    const struct jin_value *d = jin_arg(a, 0, "default");
    if (!jin_take(r, "int", a, 2, names) || !number_arg(r, a, 1, "base", 10, &base))
        return false;
    if (v->type == JIN_UNDEFINED)
        return jin_fail_undefined(r, v);
    if (base < 2 || base > 36)
        return jin_fail(r, "int knows bases from 2 to 36");
    *out = d != NULL ? *d : jin_int(0);
    if (jin_is_whole(v))
        *out = jin_int(jin_whole(v));
    else if (v->type == JIN_STR && read_number(jin_view(v), (int)base, &n))
        *out = n;
    else if (v->type == JIN_FLOAT || (v->type == JIN_STR && read_number(jin_view(v), 0, &n))) {
        double f = v->type == JIN_FLOAT ? v->u.f : n.u.f;
        if (f > -9e18 && f < 9e18)
            *out = jin_int((int64_t)f);
    }
    return true;
}

static bool f_float(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"default"};
    struct jin_value n;
    const struct jin_value *d = jin_arg(a, 0, "default");
    if (!jin_take(r, "float", a, 1, names))
        return false;
    if (v->type == JIN_UNDEFINED)
        return jin_fail_undefined(r, v);
    *out = d != NULL ? *d : jin_float(0);
    if (jin_is_number(v))
        *out = jin_float(jin_real(v));
    else if (v->type == JIN_STR && read_number(jin_view(v), 0, &n))
        *out = n;
    return true;
}

static bool f_abs(struct jin_run *r, const struct jin_value *v, struct jin_value *out)
{
    struct jin_value zero = jin_int(0);
    if (!jin_is_number(v))
        return v->type == JIN_UNDEFINED ? jin_fail_undefined(r, v)
                                        : jin_fail(r, "bad operand type for abs(): '%s'", jin_type_name(v));
    if (jin_real(v) < 0)
        return jin_binary(r, JIN_SUB, &zero, v, out);
    *out = v->type == JIN_BOOL ? jin_int(v->u.b) : *v;
    return true;
}

static bool f_round(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"precision", "method"};
    struct mdl_str method;
    int64_t precision;
    char buf[400];
    if (!jin_take(r, "round", a, 2, names) || !number_arg(r, a, 0, "precision", 0, &precision) ||
        !text_arg(r, a, 1, "method", "common", &method))
        return false;
    if (!jin_is_number(v) || precision < 0 || precision > 15)
        return v->type == JIN_UNDEFINED ? jin_fail_undefined(r, v)
                                        : jin_fail(r, "round needs a number and 0 to 15 digits");
    if (jin_is(method, "common")) {
        if (jin_is_whole(v)) {
            *out = jin_int(jin_whole(v)); /* Python keeps a whole number whole */
            return true;
        }
        (void)kvs_format(buf, sizeof buf, "%.*f", (int)precision, jin_real(v)); /* half to even, on the exact value */
        *out = jin_float(strtod(buf, NULL));
        return true;
    }
    double scale = pow(10, (double)precision);
    if (!jin_is(method, "ceil") && !jin_is(method, "floor"))
        return jin_fail(r, "method must be common, ceil or floor");
    *out = jin_float((jin_is(method, "ceil") ? ceil(jin_real(v) * scale) : floor(jin_real(v) * scale)) / scale);
    return true;
}

/* ---- JSON ---- */

static bool separators(struct jin_run *r, const struct jin_value *s, struct jin_json *how)
{
    how->item = how->indent.data != NULL ? (struct mdl_str){",", 1} : (struct mdl_str){", ", 2};
    how->key = (struct mdl_str){": ", 2};
    if (s == NULL || s->type == JIN_NONE)
        return true;
    if (s->type != JIN_LIST || s->u.list->count != 2 || s->u.list->items[0].type != JIN_STR ||
        s->u.list->items[1].type != JIN_STR)
        return jin_fail(r, "separators must be two strings");
    how->item = jin_view(&s->u.list->items[0]);
    how->key = jin_view(&s->u.list->items[1]);
    return true;
}

/* As the model hubs define it: ensure_ascii=False, indent=None, separators=None, sort_keys=False. */
static bool f_tojson(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    static const char spaces[] = "                                                                ";
    const struct jin_value *indent = jin_arg(a, 1, "indent");
    struct jin_json how = {.ascii = flag_arg(a, 0, "ensure_ascii"), .sorted = flag_arg(a, 3, "sort_keys")};
    if (!jin_take(r, "tojson", a, 4, names))
        return false;
    if (indent != NULL && indent->type == JIN_STR)
        how.indent = jin_view(indent);
    else if (indent != NULL && jin_is_whole(indent))
        how.indent = (struct mdl_str){spaces, jin_whole(indent) < 0 ? 0 : (size_t)jin_whole(indent)};
    else if (indent != NULL && indent->type != JIN_NONE)
        return jin_fail(r, "indent must be a number or a string");
    if (indent != NULL && indent->type != JIN_STR && how.indent.len >= sizeof spaces)
        return jin_fail(r, "indent is larger than %zu", sizeof spaces - 1);
    if (!separators(r, jin_arg(a, 2, "separators"), &how))
        return false;
    size_t mark = r->out->len;
    return jin_put_json(r, v, &how, 0) && jin_captured(r, mark, out);
}

static bool f_attr(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    bool safe;
    if (a->count != 1 || a->named > 0 || a->values[0].type != JIN_STR)
        return jin_fail(r, "attr takes one string");
    if (v->type == JIN_UNDEFINED)
        return jin_fail_undefined(r, v);
    if ((v->type == JIN_DICT || v->type == JIN_STR || v->type == JIN_LIST) &&
        !jin_has_method(v, jin_view(&a->values[0]), &safe))
        return jin_undefined_of(r, v, &a->values[0], out);
    return jin_attribute(r, v, jin_view(&a->values[0]), out);
}

static bool f_format(struct jin_run *r, const struct jin_value *v, const struct jin_args *a, struct jin_value *out)
{
    struct jin_value s;
    if (a->named > 0)
        return jin_fail(r, "format takes no named arguments here");
    return jin_to_str(r, v, &s) && jin_percent(r, jin_view(&s), a->values, a->count, out);
}

static bool f_markup(struct jin_run *r, const struct jin_value *v, struct mdl_str name, struct jin_value *out)
{
    if (!jin_is(name, "safe"))
        return jin_escape(r, v, out);
    if (!jin_to_str(r, v, out))
        return false;
    out->markup = true;
    return true;
}

static bool no_args(struct jin_run *r, struct mdl_str name, const struct jin_args *a)
{
    return a->count + a->named == 0 || jin_fail(r, "%.*s takes no arguments", (int)name.len, name.data);
}

typedef bool (*filter_fn)(struct jin_run *r, const struct jin_value *v, const struct jin_args *a,
                          struct jin_value *out);

static const struct {
    const char *name;
    filter_fn fn;
} with_args[] = {
    {"replace", f_replace}, {"trim", f_trim}, {"indent", f_indent}, {"default", f_default},
    {"d", f_default},       {"int", f_int},   {"float", f_float},   {"round", f_round},
    {"tojson", f_tojson},   {"attr", f_attr}, {"format", f_format},
};

bool jin_filter(struct jin_run *r, struct mdl_str name, const struct jin_value *v, const struct jin_args *a,
                struct jin_value *out)
{
    bool found = false;
    for (size_t i = 0; i < sizeof with_args / sizeof with_args[0]; i++) {
        if (jin_is(name, with_args[i].name))
            return with_args[i].fn(r, v, a, out);
    }
    if (jin_is(name, "upper") || jin_is(name, "lower") || jin_is(name, "capitalize"))
        return no_args(r, name, a) && f_case(r, v, name.data[0], out);
    if (jin_is(name, "title"))
        return no_args(r, name, a) && f_title(r, v, out);
    if (jin_is(name, "string"))
        return no_args(r, name, a) && jin_to_str(r, v, out);
    if (jin_is(name, "safe") || jin_is(name, "escape") || jin_is(name, "e") || jin_is(name, "forceescape"))
        return no_args(r, name, a) && f_markup(r, v, name, out);
    if (jin_is(name, "abs"))
        return no_args(r, name, a) && f_abs(r, v, out);
    if (!jin_filter_seq(r, name, v, a, out, &found))
        return false;
    return found || jin_fail(r, "there is no filter named '%.*s'", name.len < 60 ? (int)name.len : 60, name.data);
}
