/* load.c - see load.h. The file, or each of a split model, is mapped only while weights are packed; afterwards the daemon does not depend on it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/edge/load.h"

#include "model/model.h"
#include "sys/log.h"
#include "worker/core/sizes.h"
#include <stdlib.h>
#include <string.h>

#define SLAB_ALIGN 4096u
#define HEADER_MAX ((uint64_t)32 << 20)

static kvs_status size_pools(const struct wrk_config *c, struct wrk_loaded *l, struct kvs_error *err)
{
    struct wrk_sizes_config sc = {.layout = &l->layout, .memory = c->kv_memory, .context = l->context, .chunk_tokens = c->chunk_tokens,
                                  .snapshot_blocks = c->snapshot_blocks, .sequences = c->sequences};
    struct wrk_sizes sizes;
    kvs_status st = wrk_sizes_choose(&sc, &sizes, err);
    if (st != KVS_OK)
        return st;
    uint64_t at = 0;
    for (uint32_t g = 0; g < l->layout.group_count; g++) {
        l->pages[g] = sizes.pages[g];
        l->slab[g] = at;
        at += (l->pages[g] * l->layout.group[g].page_bytes + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
    }
    l->kv_bytes = at;
    l->blocks = sizes.blocks;
    uint32_t need = kvc_blocks_for(&l->layout, l->context);
    if (l->blocks < need)
        KVS_WARN("kv memory is smaller than one full context", "blocks=%u context=%u needs=%u remedy=\"raise --kv-memory or lower --context\"",
                 l->blocks, l->context, need);
    return KVS_OK;
}

static void fill_member(const struct wrk_config *c, msg_role role, const struct mdl_fingerprint *fp, struct wrk_loaded *l)
{
    struct msg_card *m = &l->member;
    memset(m, 0, sizeof *m);
    kvs_format(m->id, sizeof m->id, "%s", c->name);
    kvs_format(m->model, sizeof m->model, "%s", c->model_name);
    m->role = role;
    memcpy(m->fingerprint, fp->bytes, sizeof m->fingerprint);
    (void)eng_numerics_class(l->layout.kv_type, m->numerics, sizeof m->numerics);
    (void)kvc_layout_text(&l->layout, m->layout, sizeof m->layout);
    (void)mdl_card_rope_text(&l->card, l->context, m->rope, sizeof m->rope);
    kvs_format(m->kv_types, sizeof m->kv_types, "k=%s,v=%s", kvc_type_name(l->layout.kv_type), kvc_type_name(l->layout.kv_type));
    m->block_tokens = l->layout.block_tokens;
    m->context = l->context;
    m->vocab = l->card.vocab;
    m->protocol_min = MSG_PROTOCOL_MIN;
    m->protocol_max = MSG_PROTOCOL_MAX;
    m->group_count = l->layout.group_count;
    for (uint32_t g = 0; g < m->group_count; g++)
        m->group[g] = (struct msg_group_info){.page_bytes = l->layout.group[g].page_bytes, .pages = l->pages[g]};
}

static void file_done(void *user, const uint8_t *bytes, size_t count)
{
    mdl_model_done(user, bytes, count);
}

static kvs_status load_from(const struct wrk_config *c, msg_role role, struct mdl_model *file, struct wrk_loaded *l, struct kvs_error *err)
{
    struct mdl_fingerprint fp;
    const struct mdl_gguf *g = file->gguf;
    kvs_status st = mdl_card_read(g, &l->card, err);
    if (st != KVS_OK)
        return st;
    l->context = c->context != 0 ? c->context : l->card.context_length;
    if (l->context > MSG_TOKENS_MAX)
        l->context = MSG_TOKENS_MAX;
    if (c->context > l->card.context_length)
        KVS_WARN("context is larger than the model's own", "context=%u file=%u", c->context, l->card.context_length);
    l->header_bytes = mdl_gguf_header_bytes(g);
    if (l->header_bytes > HEADER_MAX)
        return kvs_fail(err, KVS_SELF_MODEL, "the file's header has %llu bytes; at most %llu are supported", (unsigned long long)l->header_bytes,
                        (unsigned long long)HEADER_MAX);
    st = eng_kv_layout(&l->card, (kvc_type)c->kv_type, c->block_tokens, c->group_layers, &l->layout, err);
    if (st == KVS_OK)
        st = size_pools(c, l, err);
    if (st != KVS_OK)
        return st;
    struct eng_load_options o = {
        .context = l->context, .file_bytes = file->header, .file_size = file->header_bytes, .file_done = file_done, .user = file};
    st = eng_model_load(g, &l->card, &o, &l->model, &fp, err);
    if (st != KVS_OK)
        return st;
    l->header = mdl_model_take_header(file);
    if (l->header == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory for the model's header");
    fill_member(c, role, &fp, l);
    return KVS_OK;
}

kvs_status wrk_load(const struct wrk_config *c, msg_role role, struct wrk_loaded *out, struct kvs_error *err)
{
    struct mdl_model file;
    memset(out, 0, sizeof *out);
    kvs_status st = mdl_model_open(c->model, &file, err);
    if (st != KVS_OK)
        return st;
    st = load_from(c, role, &file, out, err);
    if (st == KVS_OK)
        st = mdl_model_check(&file, err);
    mdl_model_close(&file);
    if (st != KVS_OK)
        wrk_unload(out);
    return st;
}

void wrk_unload(struct wrk_loaded *l)
{
    eng_model_destroy(l->model);
    free(l->header);
    l->model = NULL;
    l->header = NULL;
}
