/* format.c - text from a pattern: "%s of %d" % values, "{} of {n}".format(...), strftime, and changes of letter case.
 * Case mapping covers ASCII, Latin-1, Latin Extended-A, Greek and Cyrillic, one letter for one; in other scripts, and where
 * one letter would become two, text stays as it is.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include "base/utf8.h"

#include <string.h>
#include <time.h>

/* ---- letter case ---- */

uint32_t jin_upper(uint32_t c)
{
    if ((c >= 'a' && c <= 'z') || (c >= 0xE0 && c <= 0xFE && c != 0xF7) || (c >= 0x3B1 && c <= 0x3C9 && c != 0x3C2) ||
        (c >= 0x430 && c <= 0x44F))
        return c - 32;
    if (c >= 0x450 && c <= 0x45F)
        return c - 80;
    if (c == 0xFF)
        return 0x178;
    if (c == 0xB5)
        return 0x39C;
    if (c == 0x3C2)
        return 0x3A3;
    if (((c >= 0x101 && c <= 0x137) || (c >= 0x14B && c <= 0x177) || (c >= 0x461 && c <= 0x481)) && c % 2 == 1 &&
        c != 0x131)
        return c - 1;
    if (((c >= 0x13A && c <= 0x148) || (c >= 0x17A && c <= 0x17E)) && c % 2 == 0)
        return c - 1;
    return c == 0x131 ? 'I' : c == 0x17F ? 'S' : c;
}

uint32_t jin_lower(uint32_t c)
{
    if ((c >= 'A' && c <= 'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7) || (c >= 0x391 && c <= 0x3A9 && c != 0x3A2) ||
        (c >= 0x410 && c <= 0x42F))
        return c + 32;
    if (c >= 0x400 && c <= 0x40F)
        return c + 80;
    if (c == 0x178)
        return 0xFF;
    if (((c >= 0x100 && c <= 0x136) || (c >= 0x14A && c <= 0x176) || (c >= 0x460 && c <= 0x480)) && c % 2 == 0 &&
        c != 0x130)
        return c + 1;
    if (((c >= 0x139 && c <= 0x147) || (c >= 0x179 && c <= 0x17D)) && c % 2 == 1)
        return c + 1;
    return c;
}

static bool is_letter(uint32_t c)
{
    return jin_upper(c) != c || jin_lower(c) != c || c == 0xDF;
}

static bool wants_upper(char how, uint32_t c, size_t i, bool inside)
{
    return how == 'u' || (how == 'c' && i == 0) || (how == 't' && !inside) || (how == 's' && jin_lower(c) == c);
}

/* Text up to its first character beyond ASCII, into memory of the run; *done says how far that was. */
static bool change_ascii(struct jin_run *r, struct mdl_str s, char how, size_t *done, char **out)
{
    bool inside = false;
    size_t i = 0;
    char *to = jin_alloc(r, s.len + 1, 1);
    if (to == NULL)
        return false;
    for (; i < s.len && (unsigned char)s.data[i] < 0x80; i++) {
        uint32_t c = (unsigned char)s.data[i];
        to[i] = (char)(wants_upper(how, c, i, inside) ? jin_upper(c) : jin_lower(c));
        inside = is_letter(c);
    }
    *done = i;
    *out = to;
    return true;
}

bool jin_change_case(struct jin_run *r, struct mdl_str s, char how, struct jin_value *out)
{
    size_t done;
    char *ascii;
    if (!jin_step(r, s.len / 16) || !change_ascii(r, s, how, &done, &ascii))
        return false;
    if (done == s.len) {
        *out = jin_str(ascii, done);
        return true;
    }
    size_t mark = r->out->len;
    bool inside = false; /* after a letter */
    if (!jin_step(r, s.len / 2))
        return false;
    for (size_t i = 0; i < s.len;) {
        uint32_t c, to;
        uint8_t bytes[4];
        size_t n = jin_char(s.data + i, s.len - i, &c);
        to = wants_upper(how, c, i, inside) ? jin_upper(c) : jin_lower(c);
        inside = is_letter(c);
        int m = to != c ? kvs_utf8_encode(to, bytes) : 0;
        if (!(m > 0 ? jin_put(r, bytes, (size_t)m) : jin_put(r, s.data + i, n)))
            return false;
        i += n;
    }
    return jin_captured(r, mark, out);
}

/* ---- "%" ---- */

static bool to_whole(struct jin_run *r, const struct jin_value *v, int64_t *out)
{
    if (!jin_is_number(v))
        return v->type == JIN_UNDEFINED ? jin_fail_undefined(r, v)
                                        : jin_fail(r, "a number is needed here, not %s", jin_type_name(v));
    if (v->type == JIN_FLOAT && !(v->u.f > -9e18 && v->u.f < 9e18))
        return jin_fail(r, "a number is too large");
    *out = v->type == JIN_FLOAT ? (int64_t)v->u.f : jin_whole(v);
    return true;
}

static bool put_conversion(struct jin_run *r, char kind, long precision, const struct jin_value *v)
{
    char buf[400];
    int64_t i;
    size_t mark = r->out->len;
    switch (kind) {
    case 's':
    case 'r':
        if (!(kind == 's' ? jin_put_value(r, v) : jin_put_repr(r, v)))
            return false;
        if (precision >= 0) {
            struct mdl_str s = {(const char *)r->out->data + mark, r->out->len - mark};
            r->out->len = s.len == 0 ? mark : mark + jin_offset(s, (size_t)precision);
        }
        return true;
    case 'd':
    case 'i':
    case 'u': return to_whole(r, v, &i) && jin_put(r, buf, kvs_format(buf, sizeof buf, "%lld", (long long)i));
    case 'x':
    case 'X':
    case 'o':
        if (!to_whole(r, v, &i) || i < 0)
            return jin_fail(r, "%%%c needs a whole number from 0 on", kind);
        return jin_put(r, buf,
                       kind == 'x'   ? kvs_format(buf, sizeof buf, "%llx", (unsigned long long)i)
                       : kind == 'X' ? kvs_format(buf, sizeof buf, "%llX", (unsigned long long)i)
                                     : kvs_format(buf, sizeof buf, "%llo", (unsigned long long)i));
    case 'f':
        if (!jin_is_number(v) || precision > 50)
            return jin_fail(r, "%%f needs a number and at most 50 digits");
        return jin_put(r, buf, kvs_format(buf, sizeof buf, "%.*f", precision < 0 ? 6 : (int)precision, jin_real(v)));
    default: return jin_fail(r, "unsupported format character '%c'", kind >= ' ' && kind < 127 ? kind : '?');
    }
}

/* Up to three digits. */
static long small_number(struct mdl_str s, size_t *i)
{
    long v = 0;
    for (size_t k = 0; k < 3 && *i < s.len && s.data[*i] >= '0' && s.data[*i] <= '9'; k++)
        v = v * 10 + (s.data[(*i)++] - '0');
    return v;
}

static bool pad(struct jin_run *r, size_t mark, long width, bool left, char with)
{
    struct jin_value v;
    if (!jin_captured(r, mark, &v))
        return false;
    long missing = width - (long)jin_count_chars(jin_view(&v));
    if (left && !jin_put_value(r, &v))
        return false;
    for (long i = 0; i < missing; i++) {
        if (!jin_put(r, left ? " " : &with, 1))
            return false;
    }
    return left || jin_put_value(r, &v);
}

bool jin_percent(struct jin_run *r, struct mdl_str f, const struct jin_value *args, size_t count, struct jin_value *out)
{
    size_t mark = r->out->len, used = 0;
    for (size_t i = 0; i < f.len; i++) {
        if (f.data[i] != '%') {
            if (!jin_put(r, f.data + i, 1) || !jin_step(r, i % 8 == 0))
                return false;
            continue;
        }
        i++;
        bool left = false, zero = false;
        for (; i < f.len && (f.data[i] == '-' || f.data[i] == '0'); i++) {
            left = left || f.data[i] == '-';
            zero = zero || f.data[i] == '0';
        }
        long width = small_number(f, &i), precision = -1;
        if (i < f.len && f.data[i] == '.') {
            i++;
            precision = small_number(f, &i);
        }
        if (i >= f.len)
            return jin_fail(r, "incomplete format");
        if (f.data[i] == '%') {
            if (!jin_puts(r, "%"))
                return false;
            continue;
        }
        if (used >= count)
            return jin_fail(r, "not enough arguments for format string");
        size_t from = r->out->len;
        if (!put_conversion(r, f.data[i], precision, &args[used++]) ||
            (width > 0 && !pad(r, from, width, left, zero && f.data[i] != 's' ? '0' : ' ')))
            return false;
    }
    bool whole = count == 1 && (args[0].type == JIN_DICT || args[0].type == JIN_LIST || args[0].type == JIN_UNDEFINED);
    if (used < count && !(used == 0 && whole)) /* Python lets what can be indexed pass unused */
        return jin_fail(r, "not all arguments converted during string formatting");
    return jin_captured(r, mark, out);
}

/* ---- "{}" ---- */

static bool field(struct jin_run *r, struct mdl_str name, size_t *next, const struct jin_args *a)
{
    size_t i = 0;
    if (name.len == 0 || (name.data[0] >= '0' && name.data[0] <= '9')) {
        size_t index = name.len == 0 ? (*next)++ : (size_t)small_number(name, &i);
        if (i != name.len)
            return jin_fail(r, "format() here knows only {}, {0} and {name}");
        return index < a->count ? jin_put_value(r, &a->values[index]) : jin_fail(r, "format() lacks an argument");
    }
    for (size_t k = 0; k < a->named; k++) {
        if (jin_same(a->names[k], name))
            return jin_put_value(r, &a->named_values[k]);
    }
    return jin_fail(r, "format() has no argument '%.*s'; only {}, {0} and {name} are known",
                    name.len < 60 ? (int)name.len : 60, name.data);
}

bool jin_braces(struct jin_run *r, struct mdl_str f, const struct jin_args *a, struct jin_value *out)
{
    size_t mark = r->out->len, next = 0;
    for (size_t i = 0; i < f.len; i++) {
        char c = f.data[i];
        if ((c == '{' || c == '}') && i + 1 < f.len && f.data[i + 1] == c) {
            i++;
        } else if (c == '{') {
            const char *end = memchr(f.data + i, '}', f.len - i);
            if (end == NULL)
                return jin_fail(r, "expected '}' before end of string");
            struct mdl_str name = {f.data + i + 1, (size_t)(end - f.data) - i - 1};
            if (!field(r, name, &next, a))
                return false;
            i = (size_t)(end - f.data);
            continue;
        } else if (c == '}') {
            return jin_fail(r, "single '}' encountered in format string");
        }
        if (!jin_put(r, &c, 1) || !jin_step(r, i % 8 == 0))
            return false;
    }
    return jin_captured(r, mark, out);
}

/* ---- functions ---- */

static const char *const functions[] = {"range", "namespace", "dict", "raise_exception", "strftime_now"};

int jin_function(struct mdl_str name)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (jin_is(name, functions[i]))
            return (int)i;
    }
    return -1;
}

static bool make_range(struct jin_run *r, const struct jin_args *a, struct jin_value *out)
{
    int64_t v[3] = {0, 0, 1};
    if (a->count < 1 || a->count > 3 || a->named > 0)
        return jin_fail(r, "range takes 1 to 3 arguments");
    for (size_t i = 0; i < a->count; i++) {
        if (a->values[i].type == JIN_UNDEFINED)
            return jin_fail_undefined(r, &a->values[i]);
        if (!jin_is_whole(&a->values[i]))
            return jin_fail(r, "'%s' object cannot be interpreted as an integer", jin_type_name(&a->values[i]));
        v[i] = jin_whole(&a->values[i]);
    }
    if (a->count == 1) {
        v[1] = v[0];
        v[0] = 0;
    }
    if (v[2] == 0)
        return jin_fail(r, "range() arg 3 must not be zero");
    struct jin_range *g = jin_alloc(r, 1, sizeof *g);
    if (g == NULL)
        return false;
    *g = (struct jin_range){v[0], v[1], v[2], 0};
    if (v[2] > 0 ? v[1] > v[0] : v[1] < v[0]) {
        uint64_t span = v[2] > 0 ? (uint64_t)v[1] - (uint64_t)v[0] : (uint64_t)v[0] - (uint64_t)v[1];
        uint64_t by = v[2] > 0 ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
        uint64_t n = (span - 1) / by + 1;
        if (n > JIN_RANGE_MAX)
            return jin_fail(r, "range too big; a range has at most %d elements", JIN_RANGE_MAX);
        g->count = (size_t)n;
    }
    *out = (struct jin_value){.type = JIN_RANGE, .u.range = g};
    return true;
}

/* dict(...) and namespace(...): a dict or pairs, then names. */
static bool make_dict(struct jin_run *r, const struct jin_args *a, bool namespace, struct jin_value *out)
{
    const struct jin_value *items, *pair;
    struct jin_value dict;
    size_t count, two;
    if (a->count > 1)
        return jin_fail(r, "at most one argument without a name is expected");
    if (!jin_dict_new(r, &dict))
        return false;
    if (a->count == 1 && a->values[0].type == JIN_DICT) {
        for (size_t i = 0; i < a->values[0].u.dict->count; i++) {
            const struct jin_pair *p = &a->values[0].u.dict->pairs[i];
            if (!jin_dict_set(r, dict.u.dict, &p->key, &p->value))
                return false;
        }
    } else if (a->count == 1) {
        if (!jin_iterate(r, &a->values[0], &items, &count))
            return false;
        for (size_t i = 0; i < count; i++) {
            if (!jin_iterate(r, &items[i], &pair, &two))
                return false;
            if (two != 2)
                return jin_fail(r, "a dict is made of pairs");
            if (!jin_dict_set(r, dict.u.dict, &pair[0], &pair[1]))
                return false;
        }
    }
    for (size_t i = 0; i < a->named; i++) {
        struct jin_value key = jin_str(a->names[i].data, a->names[i].len);
        if (!jin_dict_set(r, dict.u.dict, &key, &a->named_values[i]))
            return false;
    }
    dict.type = namespace ? JIN_NAMESPACE : JIN_DICT;
    *out = dict;
    return true;
}

static bool raise_exception(struct jin_run *r, const struct jin_args *a)
{
    struct jin_value s;
    if (a->count != 1 || a->named > 0)
        return jin_fail(r, "raise_exception takes one argument");
    if (!jin_to_str(r, &a->values[0], &s))
        return false;
    if (s.len == 0) /* an error without a word helps nobody */
        return jin_fail(r, "the template raised an exception without a message");
    if (r->status == KVS_OK)
        r->status = kvs_fail(r->err, KVS_REQ_INVALID, "%.*s", s.len < 1000 ? (int)s.len : 1000, s.u.text);
    return false;
}

static bool put_number(struct jin_run *r, int v, int digits, bool bare)
{
    char buf[16];
    return jin_put(r, buf, kvs_format(buf, sizeof buf, "%0*d", bare ? 1 : digits, v));
}

/* One conversion, in English; bare: no leading zeros ("%-d"). */
static bool put_time(struct jin_run *r, const struct tm *t, char kind, bool bare)
{
    static const char *const days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                         "July",    "August",   "September", "October", "November", "December"};
    const char *day = days[t->tm_wday], *month = months[t->tm_mon];
    switch (kind) {
    case 'Y': return put_number(r, t->tm_year + 1900, 1, true);
    case 'y': return put_number(r, t->tm_year % 100, 2, bare);
    case 'm': return put_number(r, t->tm_mon + 1, 2, bare);
    case 'd': return put_number(r, t->tm_mday, 2, bare);
    case 'e': return (t->tm_mday > 9 || bare || jin_puts(r, " ")) && put_number(r, t->tm_mday, 1, true);
    case 'H': return put_number(r, t->tm_hour, 2, bare);
    case 'I': return put_number(r, t->tm_hour % 12 == 0 ? 12 : t->tm_hour % 12, 2, bare);
    case 'M': return put_number(r, t->tm_min, 2, bare);
    case 'S': return put_number(r, t->tm_sec, 2, bare);
    case 'j': return put_number(r, t->tm_yday + 1, 3, bare);
    case 'p': return jin_puts(r, t->tm_hour < 12 ? "AM" : "PM");
    case 'A': return jin_puts(r, day);
    case 'a': return jin_put(r, day, 3);
    case 'B': return jin_puts(r, month);
    case 'b': return jin_put(r, month, 3);
    case 'Z':
    case 'z': return true; /* Python's now() has no zone */
    case '%': return jin_puts(r, "%");
    case 'F':
        return put_number(r, t->tm_year + 1900, 1, true) && jin_puts(r, "-") &&
               put_number(r, t->tm_mon + 1, 2, false) && jin_puts(r, "-") && put_number(r, t->tm_mday, 2, false);
    case 'T':
        return put_number(r, t->tm_hour, 2, false) && jin_puts(r, ":") && put_number(r, t->tm_min, 2, false) &&
               jin_puts(r, ":") && put_number(r, t->tm_sec, 2, false);
    default: return jin_fail(r, "strftime_now does not know '%%%c'", kind >= ' ' && kind < 127 ? kind : '?');
    }
}

static bool strftime_now(struct jin_run *r, const struct jin_args *a, struct jin_value *out)
{
    size_t mark = r->out->len;
    time_t now = (time_t)r->now_s;
    struct tm t;
    if (a->count != 1 || a->named > 0 || a->values[0].type != JIN_STR)
        return jin_fail(r, "strftime_now takes one string");
    if (gmtime_r(&now, &t) == NULL || t.tm_year > 8099 || t.tm_year < -1900)
        return jin_fail(r, "the clock is out of range");
    struct mdl_str f = jin_view(&a->values[0]);
    for (size_t i = 0; i < f.len; i++) {
        if (!jin_step(r, 1))
            return false;
        if (f.data[i] != '%' || i + 1 == f.len) {
            if (!jin_put(r, f.data + i, 1))
                return false;
            continue;
        }
        bool bare = f.data[i + 1] == '-' && i + 2 < f.len;
        i += bare ? 2 : 1;
        if (!put_time(r, &t, f.data[i], bare))
            return false;
    }
    return jin_captured(r, mark, out);
}

bool jin_call_function(struct jin_run *r, int function, const struct jin_args *a, struct jin_value *out)
{
    switch (function) {
    case 0: return make_range(r, a, out);
    case 1:
    case 2: return make_dict(r, a, function == 1, out);
    case 3: return raise_exception(r, a);
    default: return strftime_now(r, a, out);
    }
}
