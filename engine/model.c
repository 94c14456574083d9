/* model.c - from GGUF tensors to packed weights: op table, memory, rotation tables, fingerprint.
 *
 * Tensors are taken in file order, one pass: each is hashed and repacked while its bytes are in the cache, so that the
 * file is read once and its mapping can be dropped afterwards. What a file holds beyond what its architecture knows is
 * an error by name, never ignored: a model computed without one of its tensors would talk plausible nonsense.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/model.h"
#include "engine/arch/arch.h"
#include "engine/ctx.h"
#include "engine/memory.h"
#include "engine/ops/f16.h"
#include "engine/rope.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT_MAX (1u << 20)

static kvs_status choose_ops(const char *isa, const struct eng_ops **out, struct kvs_error *err)
{
    if (isa == NULL || isa[0] == '\0') {
        isa = getenv("KVASIR_ISA");
    }
    const struct eng_ops *best = eng_ops_best();
    if (isa != NULL && strcmp(isa, eng_ops_ref.name) == 0) {
        *out = &eng_ops_ref;
        return KVS_OK;
    }
    bool automatic = isa == NULL || isa[0] == '\0';
    if (automatic && best == NULL) {
        return kvs_fail(
            err, KVS_SELF_UNSUPPORTED,
            "this CPU lacks AVX2, FMA or F16C; Kvasir needs an x86-64-v3 machine (or KVASIR_ISA=ref, slow)");
    }
    if (automatic || (best != NULL && strcmp(isa, best->name) == 0)) {
        *out = best;
        return KVS_OK;
    }
    return kvs_fail(err, KVS_SELF_UNSUPPORTED,
                    "instruction set \"%.32s\" is not in this build or not on this CPU; use ref%s%s", isa,
                    best != NULL ? " or " : "", best != NULL ? best->name : "");
}

static kvs_status check_attention(const struct mdl_card *c, struct kvs_error *err)
{
    if (c->kv_heads == 0 || c->heads % c->kv_heads != 0) {
        return kvs_fail(err, KVS_SELF_MODEL, "%u attention heads cannot share %u KV heads", c->heads, c->kv_heads);
    }
    if (c->key_dim == 0 || c->value_dim == 0 || c->key_dim > ENG_HEAD_DIM_MAX || c->value_dim > ENG_HEAD_DIM_MAX) {
        return kvs_fail(err, KVS_SELF_UNSUPPORTED, "head dimensions %u and %u are outside 1..%u", c->key_dim,
                        c->value_dim, ENG_HEAD_DIM_MAX);
    }
    if (c->rope.dims % 2 != 0 || c->rope.dims > c->key_dim || !(c->rope.base > 1.0) || !(c->rope.base < 1e15)) {
        return kvs_fail(err, KVS_SELF_MODEL, "rope of %u dims with base %g does not fit heads of %u", c->rope.dims,
                        c->rope.base, c->key_dim);
    }
    return KVS_OK;
}

static kvs_status check_card(const struct mdl_card *c, uint32_t context, struct kvs_error *err)
{
    if (c->layers == 0 || c->layers > KVC_LAYERS_MAX || c->width == 0 || c->vocab == 0 ||
        (c->ff == 0 && c->heads != 0)) {
        return kvs_fail(err, KVS_SELF_MODEL, "model has no layers, width, feed-forward length or vocabulary");
    }
    if (c->heads == 0 && c->ssm.inner == 0) {
        return kvs_fail(err, KVS_SELF_MODEL, "model has neither attention heads nor recurrent channels");
    }
    if (c->ssm.inner != 0 && (c->ssm.conv_kernel > ENG_CONV_MAX || c->ssm.state_size > ENG_STATE_MAX ||
                              (c->ssm.per_channel && c->ssm.groups != 1))) {
        return kvs_fail(err, KVS_SELF_UNSUPPORTED,
                        "a convolution over %u tokens, %u states a channel or %u groups are not in this build",
                        c->ssm.conv_kernel, c->ssm.state_size, c->ssm.groups);
    }
    if (context == 0 || context > CONTEXT_MAX) {
        return kvs_fail(err, KVS_SELF_CONFIG, "a context of %u tokens is outside 1..%u", context, CONTEXT_MAX);
    }
    return c->heads != 0 ? check_attention(c, err) : KVS_OK;
}

bool eng_model_room(struct eng_model *m, void *out, size_t bytes)
{
    void *p = m->plan ? NULL : eng_alloc(bytes);
    memcpy(out, &p, sizeof p);
    m->resident += eng_alloc_resident(bytes);
    return m->plan || p != NULL;
}

/* Beside what is packed so far, so much is there for a moment. */
static void passing(struct eng_model *m, uint64_t bytes)
{
    m->loading = m->resident + bytes > m->loading ? m->resident + bytes : m->loading;
}

static kvs_status check_factors(const float *f, uint32_t n, const char *name, struct kvs_error *err)
{
    for (uint32_t i = 0; f != NULL && i < n; i++) {
        if (!(f[i] > 0.0f && f[i] < 1e9f)) {
            return kvs_fail(err, KVS_SELF_MODEL, "tensor %s has a factor that is not above 0", name);
        }
    }
    return KVS_OK;
}

/* Divisors of the frequencies, from whichever tensor is meant: longrope's long ones are for contexts beyond the original. */
static kvs_status choose_factors(const struct eng_model *m, struct eng_rope_config *r, struct kvs_error *err)
{
    bool far = m->context > r->original_context;
    const char *name = "rope_freqs.weight";
    r->freq_factors = m->rope_freqs;
    if (r->scaling == MDL_ROPE_LONGROPE) {
        name = far ? "rope_factors_long.weight" : "rope_factors_short.weight";
        r->freq_factors = far ? m->rope_long : m->rope_short;
    }
    if ((r->scaling == MDL_ROPE_FACTORS || r->scaling == MDL_ROPE_LONGROPE) && r->freq_factors == NULL) {
        return kvs_fail(err, KVS_SELF_MODEL, "tensor %s is missing", name);
    }
    return check_factors(r->freq_factors, r->dims / 2, name, err);
}

static kvs_status rope_config(const struct eng_model *m, struct eng_rope_config *r, struct kvs_error *err)
{
    const struct mdl_card *c = &m->card;
    *r = (struct eng_rope_config){.dims = c->rope.dims,
                                  .base = c->rope.base,
                                  .factor = c->rope.factor,
                                  .attn_factor = c->rope.attn_factor > 0 ? c->rope.attn_factor : 1.0,
                                  .beta_fast = c->rope.beta_fast,
                                  .beta_slow = c->rope.beta_slow,
                                  .original_context =
                                      c->rope.original_context != 0 ? c->rope.original_context : c->context_length,
                                  .scaling = c->rope.scaling};
    kvs_status s = choose_factors(m, r, err);
    if (s != KVS_OK) {
        return s;
    }
    if ((r->scaling == MDL_ROPE_LINEAR || r->scaling == MDL_ROPE_YARN) && !(r->factor >= 1e-3 && r->factor <= 1e6)) {
        return kvs_fail(err, KVS_SELF_MODEL, "rope scaling factor %g is out of range", r->factor);
    }
    if (c->latent.kv_rank != 0 && r->scaling == MDL_ROPE_YARN) { /* the magnitude is in the scale of the scores there */
        r->attn_factor = 1.0 / (1.0 + 0.1 * eng_log64(r->factor));
    }
    return KVS_OK;
}

static kvs_status build_table(struct eng_model *m, const struct eng_rope_config *r, struct eng_rotation *to,
                              struct kvs_error *err)
{
    size_t n = (size_t)m->context * (r->dims / 2) * sizeof(float);
    if (!eng_model_room(m, &to->cosines, n) || !eng_model_room(m, &to->sines, n)) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the rotation tables of %u positions", m->context);
    }
    m->bytes += 2 * n;
    m->tables += 2 * eng_alloc_resident(n);
    if (!m->plan) {
        eng_rope_tables(r, m->context, to->cosines, to->sines);
    }
    return KVS_OK;
}

/* Table 0, and table 1 where windowed layers have their own base. */
static kvs_status build_rope(struct eng_model *m, struct kvs_error *err)
{
    struct eng_rope_config r = {.dims = m->card.rope.dims};
    kvs_status s = m->plan ? KVS_OK : rope_config(m, &r, err);
    if (s == KVS_OK) {
        s = build_table(m, &r, &m->rotation[0], err);
    }
    if (s != KVS_OK || m->card.rope.window_base == 0) {
        return s;
    }
    r = (struct eng_rope_config){
        .dims = r.dims, .base = m->card.rope.window_base, .attn_factor = 1.0, .scaling = MDL_ROPE_NONE};
    return build_table(m, &r, &m->rotation[1], err);
}

static kvs_status check_shape(const struct eng_model *m, const struct mdl_tensor *t, uint64_t rows, uint64_t cols,
                              uint64_t planes, struct kvs_error *err)
{
    if ((t->data == NULL && !m->plan) || t->shape[0] != cols || t->shape[1] != rows || t->shape[2] != planes ||
        t->shape[3] != 1) {
        return kvs_fail(err, KVS_SELF_MODEL,
                        "tensor %.*s has shape %llu x %llu x %llu where %llu x %llu x %llu is expected",
                        (int)t->name.len, t->name.data, (unsigned long long)t->shape[0],
                        (unsigned long long)t->shape[1], (unsigned long long)t->shape[2], (unsigned long long)cols,
                        (unsigned long long)rows, (unsigned long long)planes);
    }
    return KVS_OK;
}

/* Bytes of one row in the file; 0: not a whole number of blocks. */
static uint64_t file_row_bytes(mdl_type type, uint64_t cols)
{
    uint32_t weights, bytes;
    if (!mdl_type_block(type, &weights, &bytes) || cols % weights != 0) {
        return 0;
    }
    return cols / weights * bytes;
}

static kvs_status check_matrix(const struct mdl_tensor *t, uint64_t rows, uint64_t cols, struct kvs_error *err)
{
    if (!eng_ops_type_known(t->type)) {
        const char *name = mdl_type_name(t->type);
        return kvs_fail(err, KVS_SELF_UNSUPPORTED, "tensor %.*s has type %s, which this build cannot multiply with",
                        (int)t->name.len, t->name.data, name != NULL ? name : "unknown");
    }
    if (rows > UINT32_MAX - ENG_STRIP || cols > UINT32_MAX / 64 || cols % eng_ops_multiple(t->type) != 0 ||
        file_row_bytes(t->type, cols) == 0) {
        return kvs_fail(err, KVS_SELF_MODEL, "tensor %.*s has rows that cannot be packed", (int)t->name.len,
                        t->name.data);
    }
    return KVS_OK;
}

/* Shape and memory of a weight; bytes only. */
static void weight_shape(const struct eng_model *m, mdl_type type, uint64_t rows, uint64_t cols, struct eng_weight *w)
{
    w->type = type;
    w->rows = (uint32_t)rows;
    w->cols = (uint32_t)cols;
    w->rows_padded = (w->rows + ENG_STRIP - 1) / ENG_STRIP * ENG_STRIP;
    w->bytes = m->ops->packed_bytes(w->type, w->rows, w->cols);
}

kvs_status eng_model_rows(struct eng_model *m, const struct mdl_tensor *t, uint64_t all_rows, uint64_t first,
                          uint64_t rows, uint64_t cols, struct eng_weight *w, struct kvs_error *err)
{
    kvs_status s = check_shape(m, t, all_rows, cols, 1, err);
    if (s == KVS_OK) {
        s = check_matrix(t, rows, cols, err);
    }
    if (s != KVS_OK) {
        return s;
    }
    if (w->data != NULL) {
        return kvs_fail(err, KVS_SELF_MODEL, "tensor %.*s appears twice", (int)t->name.len, t->name.data);
    }
    weight_shape(m, t->type, rows, cols, w);
    if (!eng_model_room(m, &w->data, w->bytes)) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for tensor %.*s", (int)t->name.len, t->name.data);
    }
    if (!m->plan) {
        m->ops->pack(w, t->data + first * file_row_bytes(t->type, cols));
    }
    m->bytes += w->bytes;
    return KVS_OK;
}

/* Matrices from a tensor whose shape was looked at. */
static kvs_status pack_each(struct eng_model *m, const struct mdl_tensor *t, uint32_t count, uint64_t all_rows,
                            uint64_t skip, uint64_t rows, uint64_t cols, struct eng_weight **out, struct kvs_error *err)
{
    kvs_status s = check_matrix(t, rows, cols, err);
    if (s != KVS_OK) {
        return s;
    }
    if (*out != NULL) {
        return kvs_fail(err, KVS_SELF_MODEL, "tensor %.*s appears twice", (int)t->name.len, t->name.data);
    }
    struct eng_weight *w = calloc(count, sizeof *w);
    if (w == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for tensor %.*s", (int)t->name.len, t->name.data);
    }
    *out = w; /* owned by the layer from here on */
    weight_shape(m, t->type, rows, cols, &w[0]);
    uint64_t each = (w[0].bytes + 63) / 64 * 64, row_bytes = file_row_bytes(t->type, cols);
    uint8_t *data;
    if (!eng_model_room(m, &data, each * count)) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for tensor %.*s", (int)t->name.len, t->name.data);
    }
    for (uint32_t e = 0; e < count && !m->plan; e++) {
        w[e] = w[0];
        w[e].data = data + e * each;
        m->ops->pack(&w[e], t->data + (e * all_rows + skip) * row_bytes);
    }
    m->bytes += each * count;
    return KVS_OK;
}

kvs_status eng_model_each(struct eng_model *m, const struct mdl_tensor *t, uint32_t count, uint64_t all_rows,
                          uint64_t skip, uint64_t rows, uint64_t cols, struct eng_weight **out, struct kvs_error *err)
{
    kvs_status s = check_shape(m, t, all_rows, cols, count, err);
    return s == KVS_OK ? pack_each(m, t, count, all_rows, skip, rows, cols, out, err) : s;
}

/* from[head]: nope rows of rank columns, packed; to: F32 matrices [rank][nope] of the same numbers. */
static kvs_status turn_each(struct eng_model *m, const struct eng_weight *from, uint32_t count, struct eng_weight **to,
                            struct kvs_error *err)
{
    uint32_t rank = from->cols, nope = from->rows;
    struct eng_weight *w = calloc(count, sizeof *w);
    float *row = calloc(rank, sizeof *row), *turned = calloc((size_t)rank * nope, sizeof *turned);
    bool room = w != NULL && row != NULL && turned != NULL;
    *to = w;
    if (room) {
        weight_shape(m, MDL_F32, rank, nope, w);
        room = eng_model_room(m, &w->data, (w->bytes + 63) / 64 * 64 * count);
    }
    if (!room) {
        free(row);
        free(turned);
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the key projections of %u heads", count);
    }
    uint64_t each = (w->bytes + 63) / 64 * 64;
    for (uint32_t h = 0; h < count && !m->plan; h++) {
        for (uint32_t i = 0; i < nope; i++) {
            m->ops->row(&from[h], i, row);
            for (uint32_t j = 0; j < rank; j++) {
                turned[(size_t)j * nope + i] = row[j];
            }
        }
        uint8_t *data = w->data + h * each;
        w[h] = w[0];
        w[h].data = data;
        m->ops->pack(&w[h], (const uint8_t *)turned);
    }
    m->bytes += each * count;
    free(row);
    free(turned);
    return KVS_OK;
}

kvs_status eng_model_kv_b(struct eng_model *m, const struct mdl_tensor *t, struct eng_latent_weights *w,
                          struct kvs_error *err)
{
    const struct mdl_card *c = &m->card;
    uint64_t nope = c->latent.nope_dim, value = c->latent.value_dim, rank = c->latent.kv_rank, each = nope + value;
    struct eng_weight *keys = NULL;
    kvs_status s = check_shape(m, t, c->heads * each, rank, 1, err);
    if (s == KVS_OK && w->k_b != NULL) {
        s = kvs_fail(err, KVS_SELF_MODEL, "tensor %.*s appears twice", (int)t->name.len, t->name.data);
    }
    if (s == KVS_OK) {
        s = pack_each(m, t, c->heads, each, nope, value, rank, &w->v_b, err);
    }
    if (s == KVS_OK) {
        s = pack_each(m, t, c->heads, each, 0, nope, rank, &keys, err);
    }
    if (s == KVS_OK) {
        uint64_t passing_bytes = (keys->bytes + 63) / 64 * 64 * c->heads, resident = eng_alloc_resident(passing_bytes);
        m->bytes -= passing_bytes; /* they do not stay */
        m->resident -= resident;
        s = turn_each(m, keys, c->heads, &w->k_b, err);
        passing(m, t->bytes + resident + 4 * rank * (nope + 1));
    }
    free(keys != NULL ? keys->data : NULL);
    free(keys);
    return s;
}

kvs_status eng_model_matrix(struct eng_model *m, const struct mdl_tensor *t, uint64_t rows, uint64_t cols,
                            struct eng_weight *w, struct kvs_error *err)
{
    return eng_model_rows(m, t, rows, 0, rows, cols, w, err);
}

/* Number i of a small tensor; the type was looked at. */
static float number_of(const struct mdl_tensor *t, uint64_t i)
{
    if (t->type == MDL_F32) {
        float v;
        memcpy(&v, t->data + 4 * i, sizeof v);
        return v;
    }
    uint16_t h = (uint16_t)(t->data[2 * i] | t->data[2 * i + 1] << 8);
    return t->type == MDL_F16 ? eng_f16_to_f32(h) : eng_f32_from_bits((uint32_t)h << 16);
}

/* rows x cols numbers from number `first` on, of a tensor whose shape was looked at; turned: [cols][rows]. */
static kvs_status take_numbers(struct eng_model *m, const struct mdl_tensor *t, uint64_t first, uint64_t rows,
                               uint64_t cols, bool turned, float **out, struct kvs_error *err)
{
    if (t->type != MDL_F32 && t->type != MDL_F16 && t->type != MDL_BF16) {
        return kvs_fail(err, KVS_SELF_UNSUPPORTED, "tensor %.*s must be F32, F16 or BF16", (int)t->name.len,
                        t->name.data);
    }
    if (*out != NULL) {
        return kvs_fail(err, KVS_SELF_MODEL, "tensor %.*s appears twice", (int)t->name.len, t->name.data);
    }
    if (!eng_model_room(m, out, (size_t)(rows * cols) * sizeof(float))) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for tensor %.*s", (int)t->name.len, t->name.data);
    }
    m->bytes += rows * cols * sizeof(float);
    for (uint64_t i = 0; i < rows * cols && !m->plan; i++) {
        (*out)[turned ? i % cols * rows + i / cols : i] = number_of(t, first + i);
    }
    return KVS_OK;
}

kvs_status eng_model_table(struct eng_model *m, const struct mdl_tensor *t, uint64_t rows, uint64_t cols, bool turned,
                           float **out, struct kvs_error *err)
{
    kvs_status s = check_shape(m, t, rows, cols, 1, err);
    return s == KVS_OK ? take_numbers(m, t, 0, rows, cols, turned, out, err) : s;
}

kvs_status eng_model_piece(struct eng_model *m, const struct mdl_tensor *t, uint64_t all_n, uint64_t first, uint64_t n,
                           float **out, struct kvs_error *err)
{
    kvs_status s = check_shape(m, t, 1, all_n, 1, err);
    return s == KVS_OK ? take_numbers(m, t, first, 1, n, false, out, err) : s;
}

kvs_status eng_model_vector(struct eng_model *m, const struct mdl_tensor *t, uint64_t n, float **out,
                            struct kvs_error *err)
{
    return eng_model_piece(m, t, n, 0, n, out, err);
}

static kvs_status load_tensors(const struct mdl_gguf *g, const struct eng_load_options *o, struct eng_model *m,
                               struct mdl_fingerprint_state *f, struct kvs_error *err)
{
    for (uint64_t i = 0; i < mdl_gguf_tensor_count(g); i++) {
        const struct mdl_tensor *t = mdl_gguf_tensor_at(g, i);
        if (f != NULL && t->data != NULL && mdl_fingerprint_tensor(f, t->data, (size_t)t->bytes) != KVS_OK) {
            return kvs_fail(err, KVS_SELF_INTERNAL, "cannot hash the model file");
        }
        kvs_status s = eng_tensor_take(m, t, err);
        if (s != KVS_OK) {
            return s;
        }
        passing(m, t->bytes);
        if (o->file_done != NULL && t->data != NULL) {
            o->file_done(o->user, t->data, (size_t)t->bytes);
        }
    }
    return m->plan ? KVS_OK : eng_tensors_complete(m, err);
}

static kvs_status load(const struct mdl_gguf *g, const struct eng_load_options *o, struct eng_model *m,
                       struct mdl_fingerprint *fingerprint_out, struct kvs_error *err)
{
    struct mdl_fingerprint_state *f = NULL;
    if (fingerprint_out != NULL) {
        uint64_t header = mdl_gguf_header_bytes(g);
        if (o->file_bytes == NULL || header > o->file_size) {
            return kvs_fail(err, KVS_SELF_INTERNAL, "the model's file bytes are needed for its fingerprint");
        }
        if (mdl_fingerprint_begin(o->file_bytes, (size_t)header, &f) != KVS_OK) {
            return kvs_fail(err, KVS_SELF_NOMEM, "no memory to hash the model file");
        }
    }
    kvs_status s = load_tensors(g, o, m, f, err);
    if (s != KVS_OK) {
        mdl_fingerprint_drop(f);
        return s;
    }
    if (f != NULL && mdl_fingerprint_end(f, fingerprint_out) != KVS_OK) {
        return kvs_fail(err, KVS_SELF_INTERNAL, "cannot hash the model file");
    }
    s = build_rope(m, err);
    if (s != KVS_OK) {
        return s;
    }
    for (uint32_t l = 0; l < m->card.layers; l++) {
        const struct mdl_card *c = &m->card;
        uint32_t window = mdl_card_window(c, l);
        m->layer[l].attention = (struct eng_attention){
            .scale = c->scale.attention != 0 ? c->scale.attention : 1.0f / sqrtf((float)c->key_dim),
            .cap = c->scale.score_cap,
            .window = window,
            .rotation = window != 0 && c->rope.window_base != 0 ? 1 : 0};
    }
    return m->arch->setup != NULL ? m->arch->setup(m, err) : KVS_OK;
}

static kvs_status model_create(const struct mdl_gguf *g, const struct mdl_card *card, const struct eng_load_options *o,
                               bool plan, struct eng_model **out, struct mdl_fingerprint *fingerprint_out,
                               struct kvs_error *err)
{
    const struct eng_arch *arch = eng_arch_find(card->arch);
    if (arch == NULL) {
        char names[160];
        (void)eng_arch_names(names, sizeof names);
        return kvs_fail(err, KVS_SELF_UNSUPPORTED, "architecture %s is not in this build (it has: %s)", card->arch,
                        names);
    }
    uint32_t context = o->context != 0 ? o->context : card->context_length;
    kvs_status s = check_card(card, context, err);
    if (s == KVS_OK && arch->check != NULL) {
        s = arch->check(g, card, err);
    }
    if (s != KVS_OK) {
        return s;
    }
    struct eng_model *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the model");
    }
    m->card = *card;
    m->arch = arch;
    m->context = context;
    m->plan = plan;
    s = choose_ops(o->isa_name, &m->ops, err);
    if (s != KVS_OK) {
        goto fail;
    }
    m->layer = calloc(card->layers, sizeof *m->layer);
    if (m->layer == NULL) {
        s = kvs_fail(err, KVS_SELF_NOMEM, "no memory for the model's layers");
        goto fail;
    }
    s = load(g, o, m, fingerprint_out, err);
    if (s != KVS_OK) {
        goto fail;
    }
    *out = m;
    return KVS_OK;
fail:
    eng_model_destroy(m);
    return s;
}

kvs_status eng_model_load(const struct mdl_gguf *g, const struct mdl_card *card, const struct eng_load_options *o,
                          struct eng_model **out, struct mdl_fingerprint *fingerprint_out, struct kvs_error *err)
{
    return model_create(g, card, o, false, out, fingerprint_out, err);
}

kvs_status eng_memory_predict(const struct mdl_gguf *g, const struct mdl_card *card, const struct eng_load_options *o,
                              const struct kvc_layout *layout, const struct eng_ctx_options *c, struct eng_memory *out,
                              struct kvs_error *err)
{
    struct eng_load_options header = {.isa_name = o->isa_name, .context = o->context};
    struct eng_model *m = NULL;
    kvs_status s = model_create(g, card, &header, true, &m, NULL, err);
    if (s != KVS_OK) {
        return s;
    }
    uint64_t scratch = 0;
    s = eng_ctx_plan(m, layout, c, &scratch, err);
    *out = (struct eng_memory){
        .weights = m->resident - m->tables, .tables = m->tables, .scratch = scratch, .loading = m->loading};
    eng_model_destroy(m);
    return s;
}

void eng_model_destroy(struct eng_model *m)
{
    if (m == NULL) {
        return;
    }
    eng_tensors_free(m);
    free(m->layer);
    for (uint32_t i = 0; i < ENG_ROTATIONS; i++) {
        free(m->rotation[i].cosines);
        free(m->rotation[i].sines);
    }
    free(m);
}

const char *eng_model_isa(const struct eng_model *m)
{
    return m->ops->name;
}

uint64_t eng_model_bytes(const struct eng_model *m)
{
    return m->bytes;
}

size_t eng_numerics_class(kvc_type kv_type, char *out, size_t cap)
{
    const char *kv = kvc_type_name(kv_type);
    return kvs_format(out, cap, "kvasir-1,a16,cpu-fma,tp1,k=%s,v=%s", kv, kv);
}

/* What a layer keeps; attention first (block/attention.c, block/state.c count on it). */
static void layer_caches(const struct mdl_card *c, uint32_t layer, struct kvc_layer *out)
{
    *out = (struct kvc_layer){.count = 0};
    if ((c->layer[layer] & MDL_LAYER_ATTENTION) != 0) {
        uint32_t window = mdl_card_window(c, layer);
        out->cache[out->count++] = c->latent.kv_rank != 0
                                       ? (struct kvc_cache){.kind = KVC_LATENT, .kv_heads = 1, .key_dim = c->key_dim}
                                       : (struct kvc_cache){.kind = window != 0 ? KVC_WINDOW : KVC_FULL,
                                                            .window = window,
                                                            .kv_heads = c->kv_heads,
                                                            .key_dim = c->key_dim,
                                                            .value_dim = c->value_dim};
    }
    if ((c->layer[layer] & MDL_LAYER_STATE) != 0) {
        out->cache[out->count++] =
            (struct kvc_cache){.kind = KVC_STATE, .state_bytes = (uint32_t)mdl_card_state_bytes(c)};
    }
}

kvs_status eng_kv_layout(const struct mdl_card *card, kvc_type kv_type, uint32_t block_tokens, uint32_t group_layers,
                         struct kvc_layout *out, struct kvs_error *err)
{
    struct kvc_layer layers[KVC_LAYERS_MAX];
    if (card->layers > KVC_LAYERS_MAX || mdl_card_state_bytes(card) > UINT32_MAX) {
        return kvs_fail(err, KVS_SELF_UNSUPPORTED, "%u layers, or states of this size, are too many", card->layers);
    }
    for (uint32_t i = 0; i < card->layers; i++) {
        layer_caches(card, i, &layers[i]);
    }
    struct kvc_layout_config c = {.layers = card->layers,
                                  .layer = layers,
                                  .kv_type = kv_type,
                                  .block_tokens = block_tokens,
                                  .group_layers = group_layers};
    return kvc_layout_build(&c, out, err);
}
