/* text.c - strings in characters, and any value as text: what Python's str(), repr() and json.dumps() give.
 * Positions in strings count characters, as in Python; bytes that are no UTF-8 count one each.
 * Text is put together at the end of the run's output and taken back from there when it was meant for a value.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include "base/checked.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t jin_char(const char *p, size_t n, uint32_t *cp_out)
{
    uint32_t cp = (unsigned char)*p;
    int len = cp < 0x80 ? 1 : kvs_utf8_decode((const uint8_t *)p, n, &cp);
    if (cp_out != NULL)
        *cp_out = len > 0 ? cp : 0xFFFD;
    return len > 0 ? (size_t)len : 1;
}

static bool is_ascii8(const char *p)
{
    return (kvs_load_u64(p) & 0x8080808080808080u) == 0;
}

size_t jin_count_chars(struct mdl_str s)
{
    size_t count = 0;
    for (size_t i = 0; i < s.len;) {
        if (s.len - i >= 8 && is_ascii8(s.data + i)) {
            i += 8;
            count += 8;
        } else {
            i += jin_char(s.data + i, s.len - i, NULL);
            count++;
        }
    }
    return count;
}

/* Where the character with this index begins; the length when there are fewer. */
size_t jin_offset(struct mdl_str s, size_t chars)
{
    size_t i = 0;
    while (chars > 0 && i < s.len) {
        bool eight = chars >= 8 && s.len - i >= 8 && is_ascii8(s.data + i);
        i += eight ? 8 : jin_char(s.data + i, s.len - i, NULL);
        chars -= eight ? 8 : 1;
    }
    return i;
}

bool jin_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

static bool strips(const char *p, size_t n, const struct mdl_str *chars, size_t *len)
{
    uint32_t cp, other;
    *len = jin_char(p, n, &cp);
    if (chars == NULL)
        return jin_is_space(cp);
    for (size_t i = 0; i < chars->len;) {
        i += jin_char(chars->data + i, chars->len - i, &other);
        if (other == cp)
            return true;
    }
    return false;
}

struct mdl_str jin_strip(struct mdl_str s, const struct mdl_str *chars, bool left, bool right)
{
    size_t n;
    while (left && s.len > 0 && strips(s.data, s.len, chars, &n))
        s = (struct mdl_str){s.data + n, s.len - n};
    while (right && s.len > 0) {
        size_t start = s.len - 1;
        while (start > 0 && s.len - start < 4 && ((unsigned char)s.data[start] & 0xC0) == 0x80)
            start--;
        if (start + jin_char(s.data + start, s.len - start, NULL) != s.len)
            start = s.len - 1;
        if (!strips(s.data + start, s.len - start, chars, &n))
            break;
        s.len = start;
    }
    return s;
}

/* ---- numbers ---- */

static bool put_int(struct jin_run *r, int64_t i)
{
    char buf[32];
    return jin_put(r, buf, kvs_format(buf, sizeof buf, "%lld", (long long)i));
}

/* The shortest digits that read back as the same number, in Python's shape. */
bool jin_put_float(struct jin_run *r, double f)
{
    char e[40], digits[20];
    size_t n = 0, len = 0;
    if (isnan(f))
        return jin_puts(r, "nan");
    if (isinf(f))
        return jin_puts(r, f < 0 ? "-inf" : "inf");
    for (int precision = 0; precision < 17; precision++) {
        len = kvs_format(e, sizeof e, "%.*e", precision, f);
        if (strtod(e, NULL) == f)
            break;
    }
    const char *exp = memchr(e, 'e', len);
    KVS_ASSERT(exp != NULL);
    int x = (int)strtol(exp + 1, NULL, 10);
    for (const char *p = e; p < exp; p++) {
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    }
    if (signbit(f) && !jin_puts(r, "-"))
        return false;
    if (x < -4 || x >= 16) {
        char tail[16];
        size_t t = kvs_format(tail, sizeof tail, "e%c%02d", x < 0 ? '-' : '+', x < 0 ? -x : x);
        return jin_put(r, digits, 1) && (n == 1 || (jin_puts(r, ".") && jin_put(r, digits + 1, n - 1))) &&
               jin_put(r, tail, t);
    }
    if (x < 0)
        return jin_puts(r, "0.") && jin_put(r, "0000", (size_t)(-x - 1)) && jin_put(r, digits, n);
    size_t whole = (size_t)x + 1;
    if (n <= whole)
        return jin_put(r, digits, n) && jin_put(r, "0000000000000000", whole - n) && jin_puts(r, ".0");
    return jin_put(r, digits, whole) && jin_puts(r, ".") && jin_put(r, digits + whole, n - whole);
}

/* ---- repr ---- */

/* Whether Python shows a character as it is. The rarer unprintable blocks are left out: they print as themselves. */
static bool printable(uint32_t cp)
{
    return !(cp < 0x20 || (cp >= 0x7F && cp <= 0xA0) || cp == 0xAD || (cp >= 0x600 && cp <= 0x605) || cp == 0x61C ||
             cp == 0x6DD || cp == 0x1680 || cp == 0x180E || (cp >= 0x2000 && cp <= 0x200F) ||
             (cp >= 0x2028 && cp <= 0x202F) || (cp >= 0x205F && cp <= 0x206F) || cp == 0x3000 ||
             (cp >= 0xE000 && cp <= 0xF8FF) || cp == 0xFEFF || (cp >= 0xFFF0 && cp <= 0xFFFB) ||
             (cp & 0xFFFE) == 0xFFFE || cp >= 0xE0000);
}

static bool put_repr_char(struct jin_run *r, const char *p, size_t n, uint32_t cp, char quote)
{
    char buf[16];
    if (cp == (unsigned char)quote || cp == '\\')
        return jin_put(r, (const char[2]){'\\', (char)cp}, 2);
    if (cp == '\n' || cp == '\r' || cp == '\t')
        return jin_puts(r, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
    if (printable(cp))
        return jin_put(r, p, n);
    return jin_put(r, buf,
                   cp < 0x100     ? kvs_format(buf, sizeof buf, "\\x%02x", (unsigned int)cp)
                   : cp < 0x10000 ? kvs_format(buf, sizeof buf, "\\u%04x", (unsigned int)cp)
                                  : kvs_format(buf, sizeof buf, "\\U%08x", (unsigned int)cp));
}

static bool put_repr_str(struct jin_run *r, struct mdl_str s)
{
    bool single = s.len > 0 && memchr(s.data, '\'', s.len) != NULL;
    char quote = single && memchr(s.data, '"', s.len) == NULL ? '"' : '\'';
    if (!jin_put(r, &quote, 1) || !jin_step(r, s.len / 16))
        return false;
    for (size_t i = 0; i < s.len;) {
        uint32_t cp;
        size_t n = jin_char(s.data + i, s.len - i, &cp);
        if (!put_repr_char(r, s.data + i, n, cp, quote))
            return false;
        i += n;
    }
    return jin_put(r, &quote, 1);
}

static bool put_list(struct jin_run *r, const struct jin_list *l)
{
    static const char *const open[] = {"[", "(", "dict_items([", "dict_keys([", "dict_values([", ""};
    static const char *const close[] = {"]", ")", "])", "])", "])", ""};
    if (l->kind == JIN_ONCE)
        return jin_puts(r, "<generator object>");
    if (!jin_puts(r, open[l->kind]))
        return false;
    for (size_t i = 0; i < l->count; i++) {
        if ((i > 0 && !jin_puts(r, ", ")) || !jin_put_repr(r, &l->items[i]))
            return false;
    }
    return (l->kind != JIN_A_TUPLE || l->count != 1 || jin_puts(r, ",")) && jin_puts(r, close[l->kind]);
}

static bool put_dict(struct jin_run *r, const struct jin_dict *d)
{
    if (!jin_puts(r, "{"))
        return false;
    for (size_t i = 0; i < d->count; i++) {
        if ((i > 0 && !jin_puts(r, ", ")) || !jin_put_repr(r, &d->pairs[i].key) || !jin_puts(r, ": ") ||
            !jin_put_repr(r, &d->pairs[i].value))
            return false;
    }
    return jin_puts(r, "}");
}

static bool put_range(struct jin_run *r, const struct jin_range *g)
{
    char buf[96];
    size_t n = kvs_format(buf, sizeof buf, "range(%lld, %lld", (long long)g->start, (long long)g->stop);
    if (g->step != 1)
        n += kvs_format(buf + n, sizeof buf - n, ", %lld", (long long)g->step);
    return jin_put(r, buf, n) && jin_puts(r, ")");
}

static bool put_repr(struct jin_run *r, const struct jin_value *v)
{
    switch ((jin_type)v->type) {
    case JIN_UNDEFINED: return jin_puts(r, "Undefined");
    case JIN_NONE: return jin_puts(r, "None");
    case JIN_BOOL: return jin_puts(r, v->u.b ? "True" : "False");
    case JIN_INT: return put_int(r, v->u.i);
    case JIN_FLOAT: return jin_put_float(r, v->u.f);
    case JIN_STR:
        return (!v->markup || jin_puts(r, "Markup(")) && put_repr_str(r, jin_view(v)) &&
               (!v->markup || jin_puts(r, ")"));
    case JIN_LIST: return put_list(r, v->u.list);
    case JIN_DICT: return put_dict(r, v->u.dict);
    case JIN_RANGE: return put_range(r, v->u.range);
    case JIN_NAMESPACE: return jin_puts(r, "<Namespace ") && put_dict(r, v->u.dict) && jin_puts(r, ">");
    case JIN_MACRO:
        return jin_puts(r, "<Macro '") && jin_put(r, v->u.macro->node->name.data, v->u.macro->node->name.len) &&
               jin_puts(r, "'>");
    default: return jin_puts(r, "<") && jin_puts(r, jin_type_name(v)) && jin_puts(r, " object>");
    }
}

bool jin_put_repr(struct jin_run *r, const struct jin_value *v)
{
    if (!jin_enter(r))
        return false;
    bool ok = put_repr(r, v);
    jin_leave(r);
    return ok;
}

bool jin_put_value(struct jin_run *r, const struct jin_value *v)
{
    if (v->type == JIN_STR)
        return jin_put(r, v->u.text, v->len);
    return v->type == JIN_UNDEFINED || jin_put_repr(r, v);
}

bool jin_to_str(struct jin_run *r, const struct jin_value *v, struct jin_value *out)
{
    size_t mark = r->out->len;
    if (v->type == JIN_STR) {
        *out = *v;
        return true;
    }
    return jin_put_value(r, v) && jin_captured(r, mark, out);
}

/* ---- JSON ---- */

static bool put_json_char(struct jin_run *r, const char *p, size_t n, uint32_t cp, bool ascii)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    char buf[16];
    const char *known = cp < 0x80 && cp != 0 ? memchr(from, (int)cp, sizeof from - 1) : NULL;
    if (known != NULL)
        return jin_put(r, (const char[2]){'\\', to[known - from]}, 2);
    if (cp >= 0x20 && (cp < 0x7F || !ascii))
        return jin_put(r, p, n);
    if (cp == 0x7F)
        return jin_put(r, p, n);
    if (cp >= 0x10000)
        return jin_put(r, buf,
                       kvs_format(buf, sizeof buf, "\\u%04x\\u%04x", (unsigned int)(0xD800 + ((cp - 0x10000) >> 10)),
                                  (unsigned int)(0xDC00 + ((cp - 0x10000) & 0x3FF))));
    return jin_put(r, buf, kvs_format(buf, sizeof buf, "\\u%04x", (unsigned int)cp));
}

static bool put_json_str(struct jin_run *r, struct mdl_str s, bool ascii)
{
    size_t plain = 0; /* start of what can go out as it is */
    if (!jin_puts(r, "\"") || !jin_step(r, s.len / 16))
        return false;
    for (size_t i = 0; i < s.len;) {
        uint32_t cp;
        size_t n = jin_char(s.data + i, s.len - i, &cp);
        if (cp < 0x20 || cp == '"' || cp == '\\' || (ascii && cp >= 0x7F)) {
            if (!jin_put(r, s.data + plain, i - plain) || !put_json_char(r, s.data + i, n, cp, ascii))
                return false;
            plain = i + n;
        }
        i += n;
    }
    return jin_put(r, s.data + plain, s.len - plain) && jin_puts(r, "\"");
}

static bool new_line(struct jin_run *r, const struct jin_json *how, unsigned int level)
{
    if (how->indent.data == NULL)
        return true;
    if (!jin_puts(r, "\n"))
        return false;
    for (unsigned int i = 0; i < level; i++) {
        if (!jin_put(r, how->indent.data, how->indent.len) || !jin_step(r, 1))
            return false;
    }
    return true;
}

static bool put_json_list(struct jin_run *r, const struct jin_list *l, const struct jin_json *how, unsigned int level)
{
    if (l->kind != JIN_A_LIST && l->kind != JIN_A_TUPLE)
        return jin_fail(r, "Object of type dict_items or generator is not JSON serializable");
    if (l->count == 0)
        return jin_puts(r, "[]");
    for (size_t i = 0; i < l->count; i++) {
        if (!(i > 0 ? jin_put(r, how->item.data, how->item.len) : jin_puts(r, "[")) || !new_line(r, how, level + 1) ||
            !jin_put_json(r, &l->items[i], how, level + 1))
            return false;
    }
    return new_line(r, how, level) && jin_puts(r, "]");
}

static bool put_json_key(struct jin_run *r, const struct jin_value *key, const struct jin_json *how)
{
    if (key->type == JIN_STR)
        return put_json_str(r, jin_view(key), how->ascii);
    if (key->type != JIN_NONE && !jin_is_number(key))
        return jin_fail(r, "keys must be str, int, float, bool or None, not %s", jin_type_name(key));
    return jin_puts(r, "\"") && jin_put_json(r, key, how, 0) && jin_puts(r, "\"");
}

static int by_key(const void *a, const void *b)
{
    struct mdl_str x = jin_view(&((const struct jin_pair *)a)->key), y = jin_view(&((const struct jin_pair *)b)->key);
    size_t n = x.len < y.len ? x.len : y.len;
    int c = n > 0 ? memcmp(x.data, y.data, n) : 0;
    return c != 0 ? c : (x.len > y.len) - (x.len < y.len);
}

static bool sorted_pairs(struct jin_run *r, const struct jin_dict *d, struct jin_pair **out)
{
    struct jin_pair *p = jin_alloc(r, d->count, sizeof *p);
    if (p == NULL || !jin_step(r, d->count * 4))
        return false;
    for (size_t i = 0; i < d->count; i++) {
        p[i] = d->pairs[i];
        if (p[i].key.type != JIN_STR)
            return jin_fail(r, "only keys that are strings can be sorted here");
    }
    qsort(p, d->count, sizeof *p, by_key);
    *out = p;
    return true;
}

static bool put_json_dict(struct jin_run *r, const struct jin_dict *d, const struct jin_json *how, unsigned int level)
{
    struct jin_pair *pairs = d->pairs;
    if (d->count == 0)
        return jin_puts(r, "{}");
    if (how->sorted && !sorted_pairs(r, d, &pairs))
        return false;
    for (size_t i = 0; i < d->count; i++) {
        if (!(i > 0 ? jin_put(r, how->item.data, how->item.len) : jin_puts(r, "{")) || !new_line(r, how, level + 1) ||
            !put_json_key(r, &pairs[i].key, how) || !jin_put(r, how->key.data, how->key.len) ||
            !jin_put_json(r, &pairs[i].value, how, level + 1))
            return false;
    }
    return new_line(r, how, level) && jin_puts(r, "}");
}

static bool put_json(struct jin_run *r, const struct jin_value *v, const struct jin_json *how, unsigned int level)
{
    switch ((jin_type)v->type) {
    case JIN_NONE: return jin_puts(r, "null");
    case JIN_BOOL: return jin_puts(r, v->u.b ? "true" : "false");
    case JIN_INT: return put_int(r, v->u.i);
    case JIN_FLOAT:
        if (isnan(v->u.f) || isinf(v->u.f))
            return jin_puts(r, isnan(v->u.f) ? "NaN" : v->u.f < 0 ? "-Infinity" : "Infinity");
        return jin_put_float(r, v->u.f);
    case JIN_STR: return put_json_str(r, jin_view(v), how->ascii);
    case JIN_LIST: return put_json_list(r, v->u.list, how, level);
    case JIN_DICT: return put_json_dict(r, v->u.dict, how, level);
    default: return jin_fail(r, "Object of type %s is not JSON serializable", jin_type_name(v));
    }
}

bool jin_put_json(struct jin_run *r, const struct jin_value *v, const struct jin_json *how, unsigned int level)
{
    if (!jin_enter(r))
        return false;
    bool ok = put_json(r, v, how, level);
    jin_leave(r);
    return ok;
}
