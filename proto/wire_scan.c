/* wire_scan.c - reads protobuf bytes by their descriptor and refuses what is malformed or over a limit, without
 * allocating.
 * It runs before protobuf-c sees anything from outside, because protobuf-c allocates as it goes: a megabyte of
 * two-byte empty messages would become half a million structs. Stricter than protobuf asks for, since every writer
 * of these messages is ours or an ordinary protobuf library: a singular field may stand once, numbers must fit
 * their type, text is UTF-8 without NUL.
 * Unknown fields pass (rolling upgrades), at most 256 of them in one message.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "proto/wire_impl.h"

#define SCAN_DEPTH_MAX 6
#define SCAN_FIELDS_MAX 32
#define SCAN_UNKNOWN_MAX 256

struct scan {
    const uint8_t *at, *end;
    const ProtobufCMessageDescriptor *d;
    uint32_t count[SCAN_FIELDS_MAX]; /* occurrences, by index in d->fields */
    uint32_t unknown;
    uint32_t depth;
    struct kvs_error *err;
};

static kvs_status scan_message(const ProtobufCMessageDescriptor *d, const uint8_t *bytes, size_t n, uint32_t depth,
                               struct kvs_error *err);

static kvs_status scan_broken(const struct scan *s, const char *what)
{
    return kvs_fail(s->err, KVS_PEER_PROTOCOL, "%s: %s", s->d->short_name, what);
}

static kvs_status scan_field(const struct scan *s, const ProtobufCFieldDescriptor *f, const char *what)
{
    return kvs_fail(s->err, KVS_PEER_PROTOCOL, "%s.%s %s", s->d->short_name, f->name, what);
}

static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    uint64_t v = 0;
    const uint8_t *p = *at;
    for (unsigned shift = 0; shift < 70 && p < end; shift += 7) {
        uint8_t b = *p++;
        if (shift == 63 && b > 1) {
            return false; /* over 64 bits */
        }
        v |= (uint64_t)(b & 0x7f) << shift;
        if ((b & 0x80) == 0) {
            *at = p;
            *out = v;
            return true;
        }
    }
    return false;
}

/* Does v fit the field's type? protobuf-c would cut it to 32 bits in silence. */
static bool varint_fits(ProtobufCType type, uint64_t v)
{
    switch (type) {
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_SINT32: return v <= UINT32_MAX;
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM: return v <= INT32_MAX || v >= 0xffffffff80000000u;
    case PROTOBUF_C_TYPE_BOOL: return v <= 1;
    default: return true;
    }
}

static unsigned wire_type_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return 1;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE: return 2;
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FLOAT: return 5;
    default: return 0;
    }
}

static kvs_status scan_packed(struct scan *s, const ProtobufCFieldDescriptor *f, const uint8_t *bytes, size_t n,
                              uint32_t max, uint32_t *count)
{
    const uint8_t *at = bytes, *end = bytes + n;
    if (wire_type_of(f->type) != 0) {
        return scan_field(s, f, "is packed in a way this version does not read");
    }
    while (at < end) {
        uint64_t v;
        if (!read_varint(&at, end, &v) || !varint_fits(f->type, v)) {
            return scan_field(s, f, "has a number out of range");
        }
        if (++*count > max) {
            return kvs_fail(s->err, KVS_PEER_PROTOCOL, "%s.%s has more than %u entries", s->d->short_name, f->name,
                            max);
        }
    }
    return KVS_OK;
}

static kvs_status scan_text(struct scan *s, const ProtobufCFieldDescriptor *f, const uint8_t *bytes, size_t n,
                            uint32_t max)
{
    if (n > max) {
        return kvs_fail(s->err, KVS_PEER_PROTOCOL, "%s.%s has %zu bytes, at most %u are allowed", s->d->short_name,
                        f->name, n, max);
    }
    if (f->type == PROTOBUF_C_TYPE_STRING && n > 0 && (!kvs_utf8_valid(bytes, n) || memchr(bytes, 0, n) != NULL)) {
        return scan_field(s, f, "is not UTF-8 text");
    }
    return KVS_OK;
}

/* A length-delimited value of a known field. */
static kvs_status scan_delimited(struct scan *s, const ProtobufCFieldDescriptor *f, size_t index, const uint8_t *bytes,
                                 size_t n)
{
    bool repeated = f->label == PROTOBUF_C_LABEL_REPEATED;
    uint32_t max = 0;
    if ((repeated || f->type != PROTOBUF_C_TYPE_MESSAGE) && !msg_limit_of(s->d, f->name, &max)) {
        return scan_field(s, f, "has no limit");
    }
    if (repeated && f->type != PROTOBUF_C_TYPE_MESSAGE) {
        if (++s->unknown > SCAN_UNKNOWN_MAX) {
            return scan_field(s, f, "is cut into too many pieces");
        }
        return scan_packed(s, f, bytes, n, max, &s->count[index]);
    }
    if (++s->count[index] > (repeated ? max : 1)) {
        return scan_field(s, f, repeated ? "has too many entries" : "stands twice");
    }
    if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
        return scan_message(f->descriptor, bytes, n, s->depth + 1, s->err);
    }
    return scan_text(s, f, bytes, n, max);
}

static kvs_status scan_number(struct scan *s, const ProtobufCFieldDescriptor *f, size_t index, uint64_t v)
{
    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
        return scan_field(s, f, "is not packed");
    }
    if (++s->count[index] > 1) {
        return scan_field(s, f, "stands twice");
    }
    if (wire_type_of(f->type) == 0 && !varint_fits(f->type, v)) {
        return scan_field(s, f, "is out of range");
    }
    if (f->type == PROTOBUF_C_TYPE_ENUM && protobuf_c_enum_descriptor_get_value(f->descriptor, (int)v) == NULL) {
        return scan_field(s, f, "is not a known value");
    }
    return KVS_OK;
}

/* Takes one value of wire type off the front: its number, or its bytes. */
static bool scan_value(struct scan *s, unsigned wire, uint64_t *number_out, const uint8_t **bytes_out, size_t *n_out)
{
    size_t left = (size_t)(s->end - s->at);
    *bytes_out = NULL;
    *n_out = 0;
    *number_out = 0;
    switch (wire) {
    case 0: return read_varint(&s->at, s->end, number_out);
    case 1:
    case 5: {
        size_t n = wire == 1 ? 8 : 4;
        if (left < n) {
            return false;
        }
        s->at += n;
        return true;
    }
    case 2: {
        uint64_t n;
        if (!read_varint(&s->at, s->end, &n) || n > (uint64_t)(s->end - s->at)) {
            return false;
        }
        *bytes_out = s->at;
        *n_out = (size_t)n;
        s->at += n;
        return true;
    }
    default: return false; /* groups and what does not exist */
    }
}

static kvs_status scan_one(struct scan *s)
{
    uint64_t tag, number;
    const uint8_t *bytes;
    size_t n;
    if (!read_varint(&s->at, s->end, &tag) || tag > UINT32_MAX || tag >> 3 == 0) {
        return scan_broken(s, "broken field tag");
    }
    unsigned wire = (unsigned)(tag & 7);
    if (!scan_value(s, wire, &number, &bytes, &n)) {
        return scan_broken(s, "broken or cut off in the middle of a field");
    }
    const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field(s->d, (unsigned)(tag >> 3));
    if (f == NULL) {
        return ++s->unknown > SCAN_UNKNOWN_MAX ? scan_broken(s, "too many unknown fields") : KVS_OK;
    }
    size_t index = (size_t)(f - s->d->fields);
    KVS_ASSERT(index < SCAN_FIELDS_MAX);
    bool packed = f->label == PROTOBUF_C_LABEL_REPEATED && wire == 2;
    if (!packed && wire != wire_type_of(f->type)) {
        return scan_field(s, f, "has the wrong wire type");
    }
    return wire == 2 ? scan_delimited(s, f, index, bytes, n) : scan_number(s, f, index, number);
}

static kvs_status scan_message(const ProtobufCMessageDescriptor *d, const uint8_t *bytes, size_t n, uint32_t depth,
                               struct kvs_error *err)
{
    struct scan s = {.at = bytes, .end = bytes + n, .d = d, .depth = depth, .err = err};
    KVS_ASSERT(depth < SCAN_DEPTH_MAX); /* our messages do not recurse */
    KVS_ASSERT(d->n_fields <= SCAN_FIELDS_MAX);
    while (s.at < s.end) {
        kvs_status status = scan_one(&s);
        if (status != KVS_OK) {
            return status;
        }
    }
    return KVS_OK;
}

kvs_status msg_scan(const ProtobufCMessageDescriptor *d, const uint8_t *bytes, size_t n, struct kvs_error *err)
{
    if (n == 0) {
        return KVS_OK;
    }
    return scan_message(d, bytes, n, 0, err);
}
