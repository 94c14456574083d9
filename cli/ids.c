/* ids.c - see ids.h. Blanks around a number are allowed, an empty list is not.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/ids.h"

static const char *skip_blanks(const char *c)
{
    while (*c == ' ' || *c == '\n' || *c == '\t')
        c++;
    return c;
}

kvs_status cli_ids_parse(const char *text, uint32_t vocab, struct mdl_ids *out, struct kvs_error *err)
{
    const char *c = text;
    for (;;) {
        c = skip_blanks(c);
        if (*c < '0' || *c > '9')
            return kvs_fail(err, KVS_SELF_CONFIG, "--ids: a number is missing at byte %zu; write them as 1,2,3",
                            (size_t)(c - text));
        uint64_t id = 0;
        for (; *c >= '0' && *c <= '9' && id < UINT32_MAX; c++)
            id = id * 10 + (uint64_t)(*c - '0');
        if (id >= vocab)
            return kvs_fail(err, KVS_SELF_CONFIG, "--ids: token %llu does not exist; this model has %u (0 to %u)",
                            (unsigned long long)id, vocab, vocab - 1);
        kvs_status s = mdl_ids_push(out, (int32_t)id);
        if (s != KVS_OK)
            return kvs_fail(err, s, "--ids: out of memory");
        c = skip_blanks(c);
        if (!*c)
            return KVS_OK;
        if (*c != ',')
            return kvs_fail(err, KVS_SELF_CONFIG, "--ids: unexpected '%c' at byte %zu; write them as 1,2,3",
                            *c > 0x20 && *c < 0x7f ? *c : '?', (size_t)(c - text));
        c++;
    }
}
