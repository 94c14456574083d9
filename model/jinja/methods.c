/* methods.c - the methods of strings, lists and dicts that a template may call.
 * has_method knows all of Python's names, since a method hides a dict's key of the same name and is a true value where a
 * template asks for it; calling one that is not kept here fails by name.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include <string.h>

static const char *const str_names[] = {
    "capitalize", "casefold",   "center",       "count",        "encode",    "endswith", "expandtabs", "find",
    "format",     "format_map", "index",        "isalnum",      "isalpha",   "isascii",  "isdecimal",  "isdigit",
    "islower",    "isnumeric",  "isidentifier", "isprintable",  "isspace",   "istitle",  "isupper",    "join",
    "ljust",      "lower",      "lstrip",       "maketrans",    "partition", "replace",  "rfind",      "rindex",
    "rjust",      "rpartition", "rsplit",       "removeprefix", "rstrip",    "split",    "splitlines", "startswith",
    "strip",      "swapcase",   "title",        "removesuffix", "translate", "upper",    "zfill",      NULL,
};
static const char *const list_names[] = {"copy", "count", "index", NULL};
static const char *const list_unsafe[] = {"append", "clear",   "extend", "insert", "pop",
                                          "remove", "reverse", "sort",   NULL};
static const char *const tuple_names[] = {"count", "index", NULL};
static const char *const dict_names[] = {"copy", "fromkeys", "get", "items", "keys", "values", NULL};
static const char *const dict_unsafe[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
static const char *const loop_names[] = {"cycle", "changed", NULL};
static const char *const none[] = {NULL};

static bool among(struct mdl_str name, const char *const *names)
{
    for (; *names != NULL; names++) {
        if (jin_is(name, *names))
            return true;
    }
    return false;
}

bool jin_has_method(const struct jin_value *v, struct mdl_str name, bool *safe_out)
{
    const char *const *safe = none, *const *unsafe = none;
    if (v->type == JIN_STR) {
        safe = str_names;
    } else if (v->type == JIN_DICT) {
        safe = dict_names;
        unsafe = dict_unsafe;
    } else if (v->type == JIN_LIST && v->u.list->kind == JIN_A_LIST) {
        safe = list_names;
        unsafe = list_unsafe;
    } else if (v->type == JIN_LIST && v->u.list->kind == JIN_A_TUPLE) {
        safe = tuple_names;
    } else if (v->type == JIN_LOOP) {
        safe = loop_names;
    }
    *safe_out = among(name, safe);
    return *safe_out || among(name, unsafe);
}

/* ---- dicts, lists, loops ---- */

static bool dict_method(struct jin_run *r, const struct jin_method *m, const struct jin_args *a, struct jin_value *out)
{
    const struct jin_dict *d = m->self.u.dict;
    if (jin_is(m->name, "get")) {
        struct jin_value *there;
        if (a->count < 1 || a->count > 2 || a->named > 0)
            return jin_fail(r, "get takes one or two arguments");
        if (a->values[0].type == JIN_DICT || a->values[0].type == JIN_LIST)
            return jin_fail(r, "unhashable type: '%s'", jin_type_name(&a->values[0]));
        if (!jin_dict_find(r, d, &a->values[0], &there))
            return false;
        *out = there != NULL ? *there : a->count == 2 ? a->values[1] : jin_none();
        return true;
    }
    if (a->count + a->named > 0)
        return jin_fail(r, "this method takes no arguments");
    if (jin_is(m->name, "copy")) {
        *out = m->self;
        return true;
    }
    if (jin_is(m->name, "items"))
        return jin_dict_view(r, d, JIN_ITEMS, out);
    return jin_dict_view(r, d, jin_is(m->name, "keys") ? JIN_KEYS : JIN_VALUES, out);
}

static bool list_method(struct jin_run *r, const struct jin_method *m, const struct jin_args *a, struct jin_value *out)
{
    const struct jin_list *l = m->self.u.list;
    int64_t count = 0;
    if (jin_is(m->name, "copy")) {
        *out = m->self;
        return true;
    }
    if (a->count != 1 || a->named > 0)
        return jin_fail(r, "this method takes one argument");
    for (size_t i = 0; i < l->count; i++) {
        bool same;
        if (!jin_equal(r, &l->items[i], &a->values[0], &same))
            return false;
        if (same && jin_is(m->name, "index")) {
            *out = jin_int((int64_t)i);
            return true;
        }
        count += same;
    }
    *out = jin_int(count);
    return jin_is(m->name, "count") || jin_fail(r, "the value is not in the list");
}

static bool loop_method(struct jin_run *r, const struct jin_method *m, const struct jin_args *a, struct jin_value *out)
{
    const struct jin_loop *l = m->self.u.loop;
    struct jin_value now;
    bool same = false;
    if (jin_is(m->name, "cycle")) {
        if (a->count == 0)
            return jin_fail(r, "no items for cycling given");
        *out = a->values[l->index % a->count];
        return true;
    }
    if (!jin_list_new(r, a->count, JIN_A_TUPLE, &now))
        return false;
    for (size_t i = 0; i < a->count; i++)
        now.u.list->items[i] = a->values[i];
    if (l->changed->type != JIN_LOOP && !jin_equal(r, l->changed, &now, &same))
        return false;
    *l->changed = now;
    *out = jin_bool(!same);
    return true;
}

bool jin_call_method(struct jin_run *r, const struct jin_method *m, const struct jin_args *a, struct jin_value *out)
{
    switch ((jin_type)m->self.type) {
    case JIN_STR: return jin_call_str_method(r, m, a, out);
    case JIN_DICT:
        if (!jin_is(m->name, "fromkeys"))
            return dict_method(r, m, a, out);
        break;
    case JIN_LIST: return list_method(r, m, a, out);
    case JIN_LOOP: return loop_method(r, m, a, out);
    default: break;
    }
    return jin_fail(r, "the method '%.*s' is not supported", m->name.len < 60 ? (int)m->name.len : 60, m->name.data);
}

/* ---- strings ---- */

/* The n-th argument as a string; absent or None: *given is false. */
static bool str_arg(struct jin_run *r, const struct jin_args *a, size_t n, const char *name, struct mdl_str *out,
                    bool *given)
{
    const struct jin_value *v = jin_arg(a, n, name);
    *given = v != NULL && v->type != JIN_NONE;
    if (!*given)
        return true;
    if (v->type != JIN_STR)
        return v->type == JIN_UNDEFINED ? jin_fail_undefined(r, v)
                                        : jin_fail(r, "a string is needed, not %s", jin_type_name(v));
    *out = jin_view(v);
    return true;
}

static bool whole_arg(struct jin_run *r, const struct jin_args *a, size_t n, const char *name, int64_t otherwise,
                      int64_t *out)
{
    const struct jin_value *v = jin_arg(a, n, name);
    *out = otherwise;
    if (v == NULL || v->type == JIN_NONE)
        return true;
    if (!jin_is_whole(v))
        return v->type == JIN_UNDEFINED ? jin_fail_undefined(r, v)
                                        : jin_fail(r, "a whole number is needed, not %s", jin_type_name(v));
    *out = jin_whole(v);
    return true;
}

static const char *search(struct mdl_str s, struct mdl_str part, bool last)
{
    if (part.len > s.len)
        return NULL;
    if (part.len == 0)
        return last ? s.data + s.len : s.data;
    if (!last)
        return memmem(s.data, s.len, part.data, part.len);
    for (size_t i = s.len - part.len + 1; i-- > 0;) {
        if (memcmp(s.data + i, part.data, part.len) == 0)
            return s.data + i;
    }
    return NULL;
}

/* What a search may cost: from the front it is linear, from the back it compares at every place. */
static bool charge(struct jin_run *r, struct mdl_str s, struct mdl_str part, bool last)
{
    uint64_t places = last && part.len <= s.len ? s.len - part.len + 1 : 0;
    return jin_step(r, (s.len + part.len) / 64 + places * (1 + part.len / 64) / 16);
}

struct pieces {
    struct mdl_str *at;
    size_t count, cap;
};

static bool add_piece(struct jin_run *r, struct pieces *p, const char *from, const char *to)
{
    if (p->count == p->cap) {
        size_t cap = p->cap == 0 ? 8 : p->cap * 2;
        struct mdl_str *more = jin_alloc(r, cap, sizeof *more);
        if (more == NULL)
            return false;
        if (p->count > 0)
            memcpy(more, p->at, p->count * sizeof *more);
        p->at = more;
        p->cap = cap;
    }
    p->at[p->count++] = (struct mdl_str){from, (size_t)(to - from)};
    return jin_step(r, 1);
}

static bool to_list(struct jin_run *r, const struct pieces *p, bool backwards, jin_list_kind kind,
                    struct jin_value *out)
{
    if (!jin_list_new(r, p->count, kind, out))
        return false;
    for (size_t i = 0; i < p->count; i++) {
        const struct mdl_str *s = &p->at[backwards ? p->count - 1 - i : i];
        out->u.list->items[i] = jin_str(s->data, s->len);
    }
    return true;
}

static bool split_space(struct jin_run *r, struct mdl_str s, int64_t max, struct pieces *p)
{
    for (int64_t cuts = 0;; cuts++) {
        s = jin_strip(s, NULL, true, false);
        if (s.len == 0)
            return true;
        if (max >= 0 && cuts >= max) /* the rest as it is */
            return add_piece(r, p, s.data, s.data + s.len);
        size_t end = 0;
        while (end < s.len) {
            uint32_t cp;
            size_t n = jin_char(s.data + end, s.len - end, &cp);
            if (jin_is_space(cp))
                break;
            end += n;
        }
        if (!add_piece(r, p, s.data, s.data + end))
            return false;
        s = (struct mdl_str){s.data + end, s.len - end};
    }
}

static bool rsplit_space(struct jin_run *r, struct mdl_str s, int64_t max, struct pieces *p)
{
    for (int64_t cuts = 0;; cuts++) {
        s = jin_strip(s, NULL, false, true);
        if (s.len == 0)
            return true;
        if (max >= 0 && cuts >= max)
            return add_piece(r, p, s.data, s.data + s.len);
        size_t start = s.len;
        while (start > 0) {
            struct mdl_str head = {s.data, start};
            size_t k = start - 1;
            while (k > 0 && start - k < 4 && ((unsigned char)s.data[k] & 0xC0) == 0x80)
                k--;
            if (jin_strip(head, NULL, false, true).len != start)
                break;
            start = k;
        }
        if (!add_piece(r, p, s.data + start, s.data + s.len))
            return false;
        s.len = start;
    }
}

static bool split(struct jin_run *r, struct mdl_str s, const struct jin_args *a, bool right, struct jin_value *out)
{
    struct mdl_str by = {"", 0};
    struct pieces p = {0};
    bool given;
    int64_t max;
    if (!str_arg(r, a, 0, "sep", &by, &given) || !whole_arg(r, a, 1, "maxsplit", -1, &max) || !charge(r, s, by, right))
        return false;
    if (given && by.len == 0)
        return jin_fail(r, "empty separator");
    if (!given)
        return (right ? rsplit_space(r, s, max, &p) : split_space(r, s, max, &p)) &&
               to_list(r, &p, right, JIN_A_LIST, out);
    for (int64_t cuts = 0; max < 0 || cuts < max; cuts++) {
        const char *hit = search(s, by, right);
        if (hit == NULL)
            break;
        if (right) {
            if (!add_piece(r, &p, hit + by.len, s.data + s.len))
                return false;
            s.len = (size_t)(hit - s.data);
        } else {
            if (!add_piece(r, &p, s.data, hit))
                return false;
            s = (struct mdl_str){hit + by.len, s.len - (size_t)(hit + by.len - s.data)};
        }
    }
    return add_piece(r, &p, s.data, s.data + s.len) && to_list(r, &p, right, JIN_A_LIST, out);
}

static bool splitlines(struct jin_run *r, struct mdl_str s, const struct jin_args *a, struct jin_value *out)
{
    const struct jin_value *keep = jin_arg(a, 0, "keepends");
    struct pieces p = {0};
    size_t from = 0;
    if (!jin_step(r, s.len / 16))
        return false;
    for (size_t i = 0; i < s.len;) {
        uint32_t c;
        size_t n = jin_char(s.data + i, s.len - i, &c);
        bool end = (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
        size_t next = i + n + (c == '\r' && i + 1 < s.len && s.data[i + 1] == '\n');
        if (end) {
            if (!add_piece(r, &p, s.data + from, s.data + (keep != NULL && jin_truthy(keep) ? next : i)))
                return false;
            from = next;
        }
        i = end ? next : i + n;
    }
    return (from >= s.len || add_piece(r, &p, s.data + from, s.data + s.len)) && to_list(r, &p, false, JIN_A_LIST, out);
}

static bool partition(struct jin_run *r, struct mdl_str s, const struct jin_args *a, bool right, struct jin_value *out)
{
    struct mdl_str by = {"", 0};
    bool given;
    if (!str_arg(r, a, 0, "sep", &by, &given) || !charge(r, s, by, right))
        return false;
    if (!given || by.len == 0)
        return jin_fail(r, "empty separator");
    const char *hit = search(s, by, right);
    if (!jin_list_new(r, 3, JIN_A_TUPLE, out))
        return false;
    struct jin_value *v = out->u.list->items;
    v[0] = v[1] = v[2] = jin_text("");
    if (hit == NULL) {
        v[right ? 2 : 0] = jin_str(s.data, s.len);
        return true;
    }
    v[0] = jin_str(s.data, (size_t)(hit - s.data));
    v[1] = jin_str(hit, by.len);
    v[2] = jin_str(hit + by.len, s.len - (size_t)(hit - s.data) - by.len);
    return true;
}

/* startswith and endswith, also with a tuple. */
static bool affix(struct jin_run *r, struct mdl_str s, const struct jin_args *a, bool end, struct jin_value *out)
{
    const struct jin_value *v = jin_arg(a, 0, "prefix");
    bool hit = false;
    if (v == NULL || a->count != 1)
        return jin_fail(r, "startswith and endswith take one argument here");
    bool tuple = v->type == JIN_LIST && v->u.list->kind == JIN_A_TUPLE;
    size_t count = tuple ? v->u.list->count : 1;
    for (size_t i = 0; i < count; i++) {
        const struct jin_value *one = tuple ? &v->u.list->items[i] : v;
        if (one->type == JIN_UNDEFINED)
            return jin_fail_undefined(r, one);
        if (one->type != JIN_STR)
            return jin_fail(r, "startswith and endswith need a string or a tuple of strings, not %s",
                            jin_type_name(one));
        struct mdl_str x = jin_view(one);
        hit = hit || (x.len <= s.len && (x.len == 0 || memcmp(s.data + (end ? s.len - x.len : 0), x.data, x.len) == 0));
    }
    *out = jin_bool(hit);
    return jin_step(r, count);
}

static bool find(struct jin_run *r, struct mdl_str s, const struct jin_args *a, bool last, bool must,
                 struct jin_value *out)
{
    struct mdl_str part = {"", 0};
    bool given;
    if (!str_arg(r, a, 0, "sub", &part, &given) || !charge(r, s, part, last))
        return false;
    if (!given || a->count != 1)
        return jin_fail(r, "find and index take one string here");
    const char *hit = search(s, part, last);
    if (hit == NULL && must)
        return jin_fail(r, "substring not found");
    *out = jin_int(hit == NULL ? -1 : (int64_t)jin_count_chars((struct mdl_str){s.data, (size_t)(hit - s.data)}));
    return true;
}

static bool count_parts(struct jin_run *r, struct mdl_str s, const struct jin_args *a, struct jin_value *out)
{
    struct mdl_str part = {"", 0};
    bool given;
    int64_t n = 0;
    if (!str_arg(r, a, 0, "sub", &part, &given) || !jin_step(r, s.len / 16))
        return false;
    if (!given || part.len == 0) {
        *out = jin_int((int64_t)jin_count_chars(s) + 1);
        return given || jin_fail(r, "count takes one string");
    }
    for (const char *hit; (hit = search(s, part, false)) != NULL; n++)
        s = (struct mdl_str){hit + part.len, s.len - (size_t)(hit + part.len - s.data)};
    *out = jin_int(n);
    return jin_step(r, (uint64_t)n);
}

/* isdigit and its kind, over characters; ASCII is exact, other letters as far as format.c knows them. */
static bool all_are(struct jin_run *r, struct mdl_str s, struct mdl_str name, struct jin_value *out)
{
    bool all = s.len > 0 || jin_is(name, "isascii");
    for (size_t i = 0; i < s.len && all;) {
        uint32_t c;
        i += jin_char(s.data + i, s.len - i, &c);
        bool digit = c >= '0' && c <= '9',
             letter = jin_upper(c) != c || jin_lower(c) != c || (c >= 0x370 && !jin_is_space(c));
        if (jin_is(name, "isdigit") || jin_is(name, "isdecimal") || jin_is(name, "isnumeric"))
            all = digit;
        else if (jin_is(name, "isalpha"))
            all = letter;
        else if (jin_is(name, "isalnum"))
            all = letter || digit;
        else
            all = jin_is(name, "isspace") ? jin_is_space(c) : c < 0x80;
    }
    *out = jin_bool(all);
    return jin_step(r, s.len / 16);
}

static bool fill(struct jin_run *r, struct mdl_str s, const struct jin_args *a, char how, struct jin_value *out)
{
    size_t mark = r->out->len;
    struct mdl_str with = {how == 'z' ? "0" : " ", 1};
    bool given;
    int64_t width, have = (int64_t)jin_count_chars(s);
    if (!whole_arg(r, a, 0, "width", 0, &width) || (how != 'z' && !str_arg(r, a, 1, "fillchar", &with, &given)))
        return false;
    if (how == 'z' && s.len > 0 && (s.data[0] == '-' || s.data[0] == '+')) {
        if (!jin_put(r, s.data, 1))
            return false;
        s = (struct mdl_str){s.data + 1, s.len - 1};
    }
    int64_t more = width > have ? width - have : 0;
    int64_t before = how == 'l' ? 0 : how == 'c' ? more / 2 + (more & width & 1) : more;
    for (int64_t i = 0; i <= more; i++) {
        if (i == before && !jin_put(r, s.data, s.len))
            return false;
        if (i < more && (!jin_put(r, with.data, with.len) || !jin_step(r, 1)))
            return false;
    }
    return jin_captured(r, mark, out);
}

static bool strip(struct jin_run *r, const struct jin_method *m, const struct jin_args *a, struct jin_value *out)
{
    struct mdl_str chars = {"", 0}, s = jin_view(&m->self);
    bool given;
    if (!str_arg(r, a, 0, "chars", &chars, &given) || !jin_step(r, s.len / 64 * (1 + chars.len / 16)))
        return false;
    s = jin_strip(s, given ? &chars : NULL, m->name.data[0] != 'r', m->name.data[0] != 'l');
    *out = jin_str(s.data, s.len);
    return true;
}

static bool remove_affix(struct jin_run *r, struct mdl_str s, const struct jin_args *a, bool end, struct jin_value *out)
{
    struct mdl_str x = {"", 0};
    bool given;
    if (!str_arg(r, a, 0, "prefix", &x, &given))
        return false;
    if (given && x.len <= s.len && memcmp(s.data + (end ? s.len - x.len : 0), x.data, x.len) == 0)
        s = (struct mdl_str){end ? s.data : s.data + x.len, s.len - x.len};
    *out = jin_str(s.data, s.len);
    return true;
}

static bool replace(struct jin_run *r, struct mdl_str s, const struct jin_args *a, struct jin_value *out)
{
    struct mdl_str from = {"", 0}, to = {"", 0};
    bool given, given_to;
    int64_t count;
    if (!str_arg(r, a, 0, "old", &from, &given) || !str_arg(r, a, 1, "new", &to, &given_to) ||
        !whole_arg(r, a, 2, "count", -1, &count))
        return false;
    if (!given || !given_to)
        return jin_fail(r, "replace takes two strings");
    return jin_replace(r, s, from, to, count, out);
}

static bool join(struct jin_run *r, struct mdl_str s, const struct jin_args *a, struct jin_value *out)
{
    const struct jin_value *items;
    size_t count;
    if (a->count != 1 || !jin_iterate(r, &a->values[0], &items, &count))
        return a->count == 1 ? false : jin_fail(r, "join takes one argument");
    for (size_t i = 0; i < count; i++) {
        if (items[i].type != JIN_STR)
            return jin_fail(r, "sequence item %zu: expected str instance, %s found", i, jin_type_name(&items[i]));
    }
    return jin_join(r, items, count, s, out);
}

static bool str_method(struct jin_run *r, const struct jin_method *m, const struct jin_args *a, struct jin_value *out)
{
    struct mdl_str s = jin_view(&m->self), n = m->name;
    bool right = n.data[0] == 'r';
    if (jin_is(n, "strip") || jin_is(n, "lstrip") || jin_is(n, "rstrip"))
        return strip(r, m, a, out);
    if (jin_is(n, "split") || jin_is(n, "rsplit"))
        return split(r, s, a, right, out);
    if (jin_is(n, "startswith") || jin_is(n, "endswith"))
        return affix(r, s, a, n.data[0] == 'e', out);
    if (jin_is(n, "replace"))
        return replace(r, s, a, out);
    if (jin_is(n, "upper") || jin_is(n, "lower") || jin_is(n, "capitalize") || jin_is(n, "title") ||
        jin_is(n, "swapcase"))
        return jin_change_case(r, s, n.data[0], out);
    if (jin_is(n, "casefold"))
        return jin_change_case(r, s, 'l', out);
    if (jin_is(n, "find") || jin_is(n, "rfind") || jin_is(n, "index") || jin_is(n, "rindex"))
        return find(r, s, a, right, jin_is(n, "index") || jin_is(n, "rindex"), out);
    if (jin_is(n, "count"))
        return count_parts(r, s, a, out);
    if (jin_is(n, "join"))
        return join(r, s, a, out);
    if (jin_is(n, "format"))
        return jin_braces(r, s, a, out);
    if (jin_is(n, "splitlines"))
        return splitlines(r, s, a, out);
    if (jin_is(n, "partition") || jin_is(n, "rpartition"))
        return partition(r, s, a, right, out);
    if (jin_is(n, "removeprefix") || jin_is(n, "removesuffix"))
        return remove_affix(r, s, a, n.data[6] == 's', out);
    if (jin_is(n, "center") || jin_is(n, "ljust") || jin_is(n, "rjust") || jin_is(n, "zfill"))
        return fill(r, s, a, n.data[0], out);
    if (jin_is(n, "isdigit") || jin_is(n, "isdecimal") || jin_is(n, "isnumeric") || jin_is(n, "isalpha") ||
        jin_is(n, "isalnum") || jin_is(n, "isspace") || jin_is(n, "isascii"))
        return all_are(r, s, n, out);
    if (jin_is(n, "isupper") || jin_is(n, "islower")) {
        bool holds;
        if (!jin_test(r, jin_is(n, "isupper") ? (struct mdl_str){"upper", 5} : (struct mdl_str){"lower", 5}, &m->self,
                      a, &holds))
            return false;
        *out = jin_bool(holds);
        return true;
    }
    return jin_fail(r, "the method '%.*s' of strings is not supported", n.len < 60 ? (int)n.len : 60, n.data);
}

bool jin_call_str_method(struct jin_run *r, const struct jin_method *m, const struct jin_args *a, struct jin_value *out)
{
    if (!str_method(r, m, a, out))
        return false;
    if (out->type == JIN_STR)
        out->markup = m->self.markup;
    for (size_t i = 0; m->self.markup && out->type == JIN_LIST && i < out->u.list->count; i++)
        out->u.list->items[i].markup = true;
    return true;
}
