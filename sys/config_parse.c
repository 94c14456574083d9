/* config_parse.c - turning one text into one typed value, strictly: the whole text, inside the row's range, or an error line
 * that names where the text stood, what it was and what would be right. No value is clipped or guessed.
 * Numbers are read without regard to the locale's decimal point: programs of ours never call setlocale.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sys/config_parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool parse_u64(const char *text, const char **end_out, uint64_t *out)
{
    if (*text < '0' || *text > '9') {
        return false; /* strtoull would take spaces and signs */
    }
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    *end_out = end;
    *out = v;
    return errno == 0;
}

kvs_status kvs_parse_size(const char *text, uint64_t *bytes_out)
{
    static const char units[] = "KMGT";
    const char *p;
    uint64_t v;
    if (!parse_u64(text, &p, &v)) {
        return KVS_SELF_CONFIG;
    }
    const char *unit = *p != '\0' ? strchr(units, toupper((unsigned char)*p)) : NULL;
    unsigned shift = 0;
    if (unit != NULL) {
        shift = 10u * (unsigned)(unit - units + 1);
        p++;
        p += *p == 'i' ? 1 : 0;
    }
    p += *p == 'B' || *p == 'b' ? 1 : 0;
    if (*p != '\0' || v > UINT64_MAX >> shift || (p > text && p[-1] == 'i')) {
        return KVS_SELF_CONFIG;
    }
    *bytes_out = v << shift;
    return KVS_OK;
}

static bool parse_double(const char *text, double *out)
{
    /* Decimal notation only: strtod would take "inf", "nan", "0x1p3" and leading spaces. */
    if (*text == '\0' || text[strspn(text, "0123456789.eE+-")] != '\0') {
        return false;
    }
    char *end;
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

static bool parse_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < 4; i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool parse_enum(const char *choices, const char *text, uint32_t *out)
{
    size_t want = strlen(text);
    uint32_t index = 0;
    for (const char *p = choices;; index++) {
        size_t n = strcspn(p, "|");
        if (n == want && memcmp(p, text, n) == 0) {
            *out = index;
            return true;
        }
        if (p[n] == '\0') {
            return false;
        }
        p += n + 1;
    }
}

/* Sizes are written in the largest unit that divides them. */
static size_t put_number(const struct kvs_config_row *row, char *out, size_t cap, double v)
{
    static const char units[] = "TGMK";
    if (row->type == KVS_CFG_SIZE && v >= 1024 && v < 0x1p63) {
        uint64_t bytes = (uint64_t)v;
        for (unsigned i = 0; i < 4; i++) {
            unsigned shift = 40 - 10 * i;
            if (bytes >> shift != 0 && (bytes & (((uint64_t)1 << shift) - 1)) == 0) {
                return kvs_format(out, cap, "%llu%c", (unsigned long long)(bytes >> shift), units[i]);
            }
        }
    }
    bool whole = v == floor(v) && fabs(v) < 1e15;
    return whole ? kvs_format(out, cap, "%.0f", v) : kvs_format(out, cap, "%.9g", v);
}

void kvs_config_range(const struct kvs_config_row *row, char *out, size_t cap)
{
    out[0] = '\0';
    switch (row->type) {
    case KVS_CFG_ENUM: {
        size_t n = 0;
        for (const char *p = row->choices; *p != '\0';) {
            size_t len = strcspn(p, "|");
            const char *joint = n == 0 ? "" : strchr(p, '|') == NULL ? " or " : ", ";
            n += kvs_format(out + n, cap - n, "%s%.*s", joint, (int)len, p);
            p += len + (p[len] == '|' ? 1 : 0);
        }
        return;
    }
    case KVS_CFG_BOOL: kvs_format(out, cap, "true or false"); return;
    case KVS_CFG_NAME: kvs_format(out, cap, "letters, digits, '-', '_' and '.' only, the first no '-'"); return;
    case KVS_CFG_STRING: kvs_format(out, cap, "at most %.0f bytes", row->max - 1); return;
    case KVS_CFG_U32:
    case KVS_CFG_U64:
    case KVS_CFG_SIZE:
    case KVS_CFG_SECONDS:
    case KVS_CFG_F32: break;
    }
    if (row->min != 0 || row->max != 0) {
        size_t n = put_number(row, out, cap, row->min);
        n += kvs_format(out + n, cap - n, " to ");
        put_number(row, out + n, cap - n, row->max);
    }
}

static const char *kind_text(kvs_config_type type)
{
    switch (type) {
    case KVS_CFG_U32:
    case KVS_CFG_U64: return "a whole number";
    case KVS_CFG_SIZE: return "a size such as 64K, 512M or 2G";
    case KVS_CFG_SECONDS: return "seconds such as 30 or 0.5";
    case KVS_CFG_F32: return "a number";
    case KVS_CFG_NAME: return "a name";
    case KVS_CFG_STRING:
    case KVS_CFG_BOOL:
    case KVS_CFG_ENUM: break;
    }
    return "text";
}

static kvs_status not_understood(const struct kvs_config_row *row, const char *text, const char *where,
                                 struct kvs_error *err)
{
    char range[160];
    kvs_config_range(row, range, sizeof range);
    if (row->type == KVS_CFG_BOOL || row->type == KVS_CFG_ENUM) {
        return kvs_fail(err, KVS_SELF_CONFIG, "%s: '%.64s' is not understood; give %s", where, text, range);
    }
    return kvs_fail(err, KVS_SELF_CONFIG, "%s: '%.64s' is not %s%s%s%s", where, text, kind_text(row->type),
                    range[0] != '\0' ? " (" : "", range, range[0] != '\0' ? ")" : "");
}

static kvs_status check_range(const struct kvs_config_row *row, double v, const char *text, const char *where,
                              struct kvs_error *err)
{
    if ((row->min == 0 && row->max == 0) || (v >= row->min && v <= row->max)) {
        return KVS_OK;
    }
    char range[160];
    kvs_config_range(row, range, sizeof range);
    return kvs_fail(err, KVS_SELF_CONFIG, "%s: %.64s is out of range; give %s", where, text, range);
}

static kvs_status assign_integer(const struct kvs_config_row *row, void *field, const char *text, const char *where,
                                 struct kvs_error *err)
{
    uint64_t v = 0;
    const char *end = "";
    bool parsed = row->type == KVS_CFG_SIZE ? kvs_parse_size(text, &v) == KVS_OK
                                            : parse_u64(text, &end, &v) && *end == '\0';
    if (!parsed) {
        return not_understood(row, text, where, err);
    }
    kvs_status st = check_range(row, (double)v, text, where, err);
    if (st != KVS_OK) {
        return st;
    }
    if (row->type == KVS_CFG_U32) {
        if (v > UINT32_MAX) {
            return kvs_fail(err, KVS_SELF_CONFIG, "%s: %.64s is out of range; give 0 to 4294967295", where, text);
        }
        const uint32_t narrow = (uint32_t)v;
        memcpy(field, &narrow, sizeof narrow);
    } else {
        memcpy(field, &v, sizeof v);
    }
    return KVS_OK;
}

static kvs_status assign_real(const struct kvs_config_row *row, void *field, const char *text, const char *where,
                              struct kvs_error *err)
{
    double v = 0;
    if (!parse_double(text, &v)) {
        return not_understood(row, text, where, err);
    }
    kvs_status st = check_range(row, v, text, where, err);
    if (st != KVS_OK) {
        return st;
    }
    if (row->type == KVS_CFG_F32) {
        const float f = (float)v;
        if (!isfinite(f)) {
            return not_understood(row, text, where, err);
        }
        memcpy(field, &f, sizeof f);
        return KVS_OK;
    }
    if (v < 0 || v > 1e12) {
        return kvs_fail(err, KVS_SELF_CONFIG, "%s: %.64s is out of range; give seconds from 0 on", where, text);
    }
    const uint64_t us = (uint64_t)(v * 1e6 + 0.5);
    memcpy(field, &us, sizeof us);
    return KVS_OK;
}

static bool is_name(const char *text)
{
    bool good = text[0] != '\0' && text[0] != '-'; /* which a command would read as a flag */
    for (const char *c = text; good && *c != '\0'; c++) {
        good = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || strchr("-_.", *c) != NULL;
    }
    return good;
}

kvs_status kvs_config_assign(const struct kvs_config_row *row, void *config, const char *text, const char *where,
                             struct kvs_error *err)
{
    void *field = (char *)config + row->offset;
    switch (row->type) {
    case KVS_CFG_NAME:
    case KVS_CFG_STRING: {
        size_t n = strlen(text);
        if (row->type == KVS_CFG_NAME && !is_name(text)) {
            return not_understood(row, text, where, err);
        }
        if (n >= (size_t)row->max) {
            return kvs_fail(err, KVS_SELF_CONFIG, "%s: the text is too long (%zu bytes); give at most %.0f bytes", where, n,
                            row->max - 1);
        }
        memcpy(field, text, n + 1);
        return KVS_OK;
    }
    case KVS_CFG_BOOL: {
        bool v;
        if (!parse_bool(text, &v)) {
            return not_understood(row, text, where, err);
        }
        memcpy(field, &v, sizeof v);
        return KVS_OK;
    }
    case KVS_CFG_ENUM: {
        uint32_t v;
        if (!parse_enum(row->choices, text, &v)) {
            return not_understood(row, text, where, err);
        }
        memcpy(field, &v, sizeof v);
        return KVS_OK;
    }
    case KVS_CFG_U32:
    case KVS_CFG_U64:
    case KVS_CFG_SIZE: return assign_integer(row, field, text, where, err);
    case KVS_CFG_SECONDS:
    case KVS_CFG_F32: return assign_real(row, field, text, where, err);
    }
    return kvs_fail(err, KVS_SELF_INTERNAL, "%s: row of unknown type", where);
}

/* Edit distance of two short names; longer ones are cut, a suggestion need not be perfect. */
static size_t distance(const char *a, const char *b)
{
    enum { CUT = 48 };
    size_t na = strnlen(a, CUT), nb = strnlen(b, CUT);
    size_t row[CUT + 1];
    for (size_t j = 0; j <= nb; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

ptrdiff_t kvs_config_nearest(const char *text, const char *(*name_at)(const void *names, size_t i), const void *names,
                             size_t count)
{
    size_t n = strlen(text);
    size_t best = n / 3 + (n > 2 ? 1 : 0); /* a farther name is no typing error of this one */
    ptrdiff_t found = -1;
    for (size_t i = 0; i < count; i++) {
        const char *name = name_at(names, i);
        size_t d = name != NULL ? distance(text, name) : SIZE_MAX;
        if (d < best || (d == best && found < 0)) {
            best = d;
            found = (ptrdiff_t)i;
        }
    }
    return found;
}
