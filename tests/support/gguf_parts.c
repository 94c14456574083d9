/* gguf_parts.c - see gguf_parts.h. Keys are copied as bytes, in their order, with split.no, split.count (16 bits) and split.tensors.count (signed
 * 32 bits) behind them; later parts have these three alone.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/gguf_parts.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void copy_keys(struct tst_gguf *w, const struct mdl_gguf *whole)
{
    struct mdl_str key, next;
    char text[8], name[256];
    const char *end = mdl_gguf_tensor_at(whole, 0)->name.data;
    for (uint64_t i = 0; mdl_gguf_key_at(whole, i, &key, text, sizeof text); i++) {
        const char *value = key.data + key.len, *stop = mdl_gguf_key_at(whole, i + 1, &next, text, sizeof text) ? next.data : end;
        snprintf(name, sizeof name, "%.*s", (int)key.len, key.data);
        if (strcmp(name, "general.alignment") != 0) /* the writer has put it there */
            tst_gguf_raw(w, name, kvs_load_u32(value), value + 4, (size_t)(stop - 8 - value) - 4);
    }
}

uint8_t *tst_part_make(const struct mdl_gguf *whole, const struct tst_part *p, size_t *size_out)
{
    uint64_t alignment = 0;
    char name[300];
    (void)mdl_gguf_u64(whole, "general.alignment", &alignment);
    struct tst_gguf *w = tst_gguf_create(mdl_gguf_version(whole), p->keys ? (uint32_t)alignment : 0);
    if (p->keys)
        copy_keys(w, whole);
    tst_gguf_raw(w, "split.no", 2, &p->no, sizeof p->no);
    tst_gguf_raw(w, "split.count", 2, &p->of, sizeof p->of);
    tst_gguf_raw(w, "split.tensors.count", 5, &p->tensors, sizeof p->tensors);
    if (p->key != NULL)
        tst_gguf_str(w, p->key, p->text);
    for (uint32_t i = p->first; i < p->first + p->count; i++) {
        const struct mdl_tensor *t = mdl_gguf_tensor_at(whole, i);
        snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.data);
        tst_gguf_tensor(w, name, (uint32_t)t->type, t->dims, t->shape, t->data, (size_t)t->bytes);
    }
    return tst_gguf_finish(w, size_out, NULL);
}

struct tst_part tst_part_of(const struct mdl_gguf *whole, uint16_t no, uint16_t of, bool first_empty)
{
    uint32_t n = (uint32_t)mdl_gguf_tensor_count(whole), shares = first_empty ? of - 1u : of, at = first_empty ? no - 1u : no;
    struct tst_part p = {.keys = no == 0, .no = no, .of = of, .tensors = (int32_t)n};
    if (first_empty && no == 0)
        return p;
    p.first = n * at / shares;
    p.count = n * (at + 1) / shares - p.first;
    return p;
}
