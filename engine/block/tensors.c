/* tensors.c - see tensors.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/block/tensors.h"
#include "engine/arch/arch.h"
#include <stdlib.h>
#include <string.h>

typedef enum extent_of {
    ONE,
    WIDTH,
    HEADS_Q,
    HEADS_K,
    HEADS_V,
    HEADS_O,
    KEY,
    HEADS,
    FF,
    EXPERTS,
    FF_EXPERT,
    FF_SHARED,
    STATE_IN,
    CONV,
    KERNEL,
    INNER,
    LOW,
    RANK,
    UNITS,
    A_COLS,
    D_ROWS,
    D_COLS,
    GROUPS,
    GROUP,
    Q_RANK,
    KV_RANK,
    NOPE,
    LATENT_Q,
    LATENT_VALUE,
    LATENT_O
} extent_of;

/* QKV and GATE_UP: several matrices of the layer one above the other; QKV_BIAS: vectors one after the other. EACH: a matrix for each expert;
 * EACH_GATE_UP: two; EACH_HEAD: one for each head. KV_B: two for each head, one above the other.
 * TABLE, TURNED: rows x cols floats, or cols x rows of them. */
typedef enum slot_form {
    VECTOR,
    MATRIX,
    QKV,
    QKV_BIAS,
    GATE_UP,
    EACH,
    EACH_GATE_UP,
    EACH_HEAD,
    KV_B,
    TABLE,
    TURNED
} slot_form;

static const struct slot {
    const char *name;
    uint32_t part;
    slot_form form;
    size_t offset; /* of the field; of a fused form: the field by which its presence is told */
    extent_of rows, cols;
} slots[] = {
#define AT(field) offsetof(struct eng_layer, field)
    {"attn_norm.weight", ENG_PART_NORM, VECTOR, AT(attn_norm), ONE, WIDTH},
    {"attn_q.weight", ENG_PART_ATTENTION, MATRIX, AT(q), HEADS_Q, WIDTH},
    {"attn_k.weight", ENG_PART_ATTENTION, MATRIX, AT(k), HEADS_K, WIDTH},
    {"attn_v.weight", ENG_PART_ATTENTION, MATRIX, AT(v), HEADS_V, WIDTH},
    {"attn_qkv.weight", ENG_PART_ATTENTION, QKV, AT(q), ONE, WIDTH},
    {"attn_output.weight", ENG_PART_ATTENTION, MATRIX, AT(o), WIDTH, HEADS_O},
    {"attn_q.bias", ENG_PART_QKV_BIAS, VECTOR, AT(q_bias), ONE, HEADS_Q},
    {"attn_k.bias", ENG_PART_QKV_BIAS, VECTOR, AT(k_bias), ONE, HEADS_K},
    {"attn_v.bias", ENG_PART_QKV_BIAS, VECTOR, AT(v_bias), ONE, HEADS_V},
    {"attn_qkv.bias", ENG_PART_QKV_BIAS, QKV_BIAS, AT(q_bias), ONE, WIDTH},
    {"attn_output.bias", ENG_PART_O_BIAS, VECTOR, AT(o_bias), ONE, WIDTH},
    {"attn_q_norm.weight", ENG_PART_QK_NORM, VECTOR, AT(q_norm), ONE, KEY},
    {"attn_k_norm.weight", ENG_PART_QK_NORM, VECTOR, AT(k_norm), ONE, KEY},
    {"ffn_norm.weight", ENG_PART_FFN_NORM, VECTOR, AT(ffn_norm), ONE, WIDTH},
    {"ffn_gate.weight", ENG_PART_FFN, MATRIX, AT(gate), FF, WIDTH},
    {"ffn_up.weight", ENG_PART_FFN, MATRIX, AT(up), FF, WIDTH},
    {"ffn_up.weight", ENG_PART_FFN_FUSED, GATE_UP, AT(gate), FF, WIDTH},
    {"ffn_down.weight", ENG_PART_FFN | ENG_PART_FFN_FUSED, MATRIX, AT(down), WIDTH, FF},
    {"ffn_gate.bias", ENG_PART_FFN_BIAS, VECTOR, AT(gate_bias), ONE, FF},
    {"ffn_up.bias", ENG_PART_FFN_BIAS, VECTOR, AT(up_bias), ONE, FF},
    {"ffn_down.bias", ENG_PART_FFN_BIAS, VECTOR, AT(down_bias), ONE, WIDTH},
    {"post_attention_norm.weight", ENG_PART_POST_NORMS, VECTOR, AT(attn_post_norm), ONE, WIDTH},
    {"post_ffw_norm.weight", ENG_PART_POST_NORMS, VECTOR, AT(ffn_post_norm), ONE, WIDTH},
    {"post_attention_norm.weight", ENG_PART_LATE_NORM, VECTOR, AT(ffn_norm), ONE, WIDTH},
    {"attn_sinks.weight", ENG_PART_SINKS, VECTOR, AT(sinks), ONE, HEADS},
    {"ffn_gate_inp.weight", ENG_PART_MOE, MATRIX, AT(router), EXPERTS, WIDTH},
    {"ffn_gate_exps.weight", ENG_PART_MOE, EACH, AT(gate_experts), FF_EXPERT, WIDTH},
    {"ffn_up_exps.weight", ENG_PART_MOE, EACH, AT(up_experts), FF_EXPERT, WIDTH},
    {"ffn_gate_up_exps.weight", ENG_PART_MOE, EACH_GATE_UP, AT(gate_experts), FF_EXPERT, WIDTH},
    {"ffn_down_exps.weight", ENG_PART_MOE, EACH, AT(down_experts), WIDTH, FF_EXPERT},
    {"ffn_gate_inp.bias", ENG_PART_MOE_BIAS, VECTOR, AT(router_bias), ONE, EXPERTS},
    {"ffn_gate_exps.bias", ENG_PART_MOE_BIAS, TABLE, AT(gate_expert_bias), EXPERTS, FF_EXPERT},
    {"ffn_up_exps.bias", ENG_PART_MOE_BIAS, TABLE, AT(up_expert_bias), EXPERTS, FF_EXPERT},
    {"ffn_down_exps.bias", ENG_PART_MOE_BIAS, TABLE, AT(down_expert_bias), EXPERTS, WIDTH},
    {"exp_probs_b.bias", ENG_PART_CHOICE_BIAS, VECTOR, AT(router_choice_bias), ONE, EXPERTS},
    {"ffn_gate_shexp.weight", ENG_PART_SHARED, MATRIX, AT(shared_gate), FF_SHARED, WIDTH},
    {"ffn_up_shexp.weight", ENG_PART_SHARED, MATRIX, AT(shared_up), FF_SHARED, WIDTH},
    {"ffn_down_shexp.weight", ENG_PART_SHARED, MATRIX, AT(shared_down), WIDTH, FF_SHARED},
    {"ffn_gate_inp_shexp.weight", ENG_PART_SHARED_ROUTER, MATRIX, AT(shared_router), ONE, WIDTH},
    {"ffn_norm", ENG_PART_BARE_FFN_NORM, VECTOR, AT(ffn_norm), ONE, WIDTH},
    {"ssm_in.weight", ENG_PART_STATE, MATRIX, AT(state.in), STATE_IN, WIDTH},
    {"ssm_conv1d.weight", ENG_PART_STATE, TURNED, AT(state.conv), CONV, KERNEL},
    {"ssm_conv1d.bias", ENG_PART_CONV_BIAS, VECTOR, AT(state.conv_bias), ONE, CONV},
    {"ssm_x.weight", ENG_PART_STATE_STEP, MATRIX, AT(state.x), LOW, INNER},
    {"ssm_dt.weight", ENG_PART_STATE_STEP, MATRIX, AT(state.dt), INNER, RANK},
    {"ssm_dt.bias", ENG_PART_STATE, VECTOR, AT(state.dt_bias), ONE, UNITS},
    {"ssm_a", ENG_PART_STATE, TURNED, AT(state.a), UNITS, A_COLS},
    {"ssm_d", ENG_PART_STATE, TABLE, AT(state.d), D_ROWS, D_COLS},
    {"ssm_norm.weight", ENG_PART_STATE_NORM, TABLE, AT(state.norm), GROUPS, GROUP},
    {"ssm_out.weight", ENG_PART_STATE, MATRIX, AT(state.out), WIDTH, INNER},
    {"attn_q_a.weight", ENG_PART_LATENT_TWO_STEPS, MATRIX, AT(latent.q_a), Q_RANK, WIDTH},
    {"attn_q_a_norm.weight", ENG_PART_LATENT_TWO_STEPS, VECTOR, AT(latent.q_a_norm), ONE, Q_RANK},
    {"attn_q_b.weight", ENG_PART_LATENT_TWO_STEPS, MATRIX, AT(latent.q_b), LATENT_Q, Q_RANK},
    {"attn_q.weight", ENG_PART_LATENT_ONE_STEP, MATRIX, AT(latent.q_b), LATENT_Q, WIDTH},
    {"attn_kv_a_mqa.weight", ENG_PART_LATENT, MATRIX, AT(latent.kv_a), KEY, WIDTH},
    {"attn_kv_a_norm.weight", ENG_PART_LATENT, VECTOR, AT(latent.kv_a_norm), ONE, KV_RANK},
    {"attn_k_b.weight", ENG_PART_LATENT, EACH_HEAD, AT(latent.k_b), KV_RANK, NOPE},
    {"attn_v_b.weight", ENG_PART_LATENT, EACH_HEAD, AT(latent.v_b), LATENT_VALUE, KV_RANK},
    {"attn_kv_b.weight", ENG_PART_LATENT, KV_B, AT(latent.k_b), ONE, KV_RANK},
    {"attn_output.weight", ENG_PART_LATENT, MATRIX, AT(o), WIDTH, LATENT_O},
#undef AT
};
#define SLOTS (sizeof slots / sizeof slots[0])

static uint64_t extent(const struct mdl_card *c, extent_of d)
{
    switch (d) {
    case ONE: return 1;
    case WIDTH: return c->width;
    case HEADS_Q: return (uint64_t)c->heads * c->key_dim;
    case HEADS_K: return (uint64_t)c->kv_heads * c->key_dim;
    case HEADS_V: return (uint64_t)c->kv_heads * c->value_dim;
    case HEADS_O: return (uint64_t)c->heads * c->value_dim;
    case KEY: return c->key_dim;
    case HEADS: return c->heads;
    case FF: return c->ff;
    case EXPERTS: return c->experts.count;
    case FF_EXPERT: return c->experts.ff;
    case FF_SHARED: return c->experts.ff_shared;
    case STATE_IN:
        return c->ssm.inner + (uint64_t)(c->ssm.per_channel ? c->ssm.inner : mdl_card_conv_channels(c) + c->ssm.heads);
    case CONV: return mdl_card_conv_channels(c);
    case KERNEL: return c->ssm.conv_kernel;
    case INNER: return c->ssm.inner;
    case LOW: return c->ssm.heads + 2 * (uint64_t)c->ssm.state_size;
    case RANK: return c->ssm.heads;
    case UNITS: return c->ssm.per_channel ? c->ssm.inner : c->ssm.heads;
    case A_COLS: return c->ssm.per_channel ? c->ssm.state_size : 1;
    case D_ROWS: return c->ssm.per_channel ? 1 : c->ssm.heads;
    case D_COLS: return c->ssm.per_channel ? c->ssm.inner : 1;
    case Q_RANK: return c->latent.q_rank;
    case KV_RANK: return c->latent.kv_rank;
    case NOPE: return c->latent.nope_dim;
    case LATENT_Q: return (uint64_t)c->heads * (c->latent.nope_dim + c->rope.dims);
    case LATENT_VALUE: return c->latent.value_dim;
    case LATENT_O: return (uint64_t)c->heads * c->latent.value_dim;
    case GROUPS: return c->ssm.groups;
    case GROUP: return c->ssm.inner / c->ssm.groups;
    }
    return 0;
}

static void *field_of(struct eng_layer *l, const struct slot *s)
{
    return (uint8_t *)l + s->offset;
}

static const void *data_of(struct eng_layer *l, const struct slot *s)
{
    if (s->form == VECTOR || s->form == TABLE || s->form == TURNED) {
        return *(float **)field_of(l, s);
    }
    if (s->form == EACH || s->form == EACH_HEAD) {
        return *(struct eng_weight **)field_of(l, s);
    }
    return ((const struct eng_weight *)field_of(l, s))->data;
}

static bool is(struct mdl_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* "blk.12.attn_q.weight" -> 12 and "attn_q.weight"; false for another form. */
static bool block_name(struct mdl_str name, uint32_t *layer_out, struct mdl_str *rest_out)
{
    size_t i = 4;
    if (name.len < 7 || memcmp(name.data, "blk.", 4) != 0) {
        return false;
    }
    uint32_t layer = 0;
    for (; i < name.len && i < 9 && name.data[i] >= '0' && name.data[i] <= '9'; i++) {
        layer = layer * 10 + (uint32_t)(name.data[i] - '0');
    }
    if (i == 4 || i >= name.len || name.data[i] != '.') {
        return false;
    }
    *layer_out = layer;
    *rest_out = (struct mdl_str){.data = name.data + i + 1, .len = name.len - i - 1};
    return true;
}

static kvs_status unknown(const struct eng_model *m, const struct mdl_tensor *t, struct kvs_error *err)
{
    return kvs_fail(err, KVS_SELF_UNSUPPORTED, "tensor %.*s is not known to architecture %s of this build",
                    (int)t->name.len, t->name.data, m->arch->name);
}

static kvs_status take_qkv(struct eng_model *m, struct eng_layer *l, const struct mdl_tensor *t, struct kvs_error *err)
{
    const struct mdl_card *c = &m->card;
    uint64_t q = extent(c, HEADS_Q), k = extent(c, HEADS_K), v = extent(c, HEADS_V), all = q + k + v;
    kvs_status s = eng_model_rows(m, t, all, 0, q, c->width, &l->q, err);
    if (s == KVS_OK) {
        s = eng_model_rows(m, t, all, q, k, c->width, &l->k, err);
    }
    return s == KVS_OK ? eng_model_rows(m, t, all, q + k, v, c->width, &l->v, err) : s;
}

static kvs_status take_qkv_bias(struct eng_model *m, struct eng_layer *l, const struct mdl_tensor *t,
                                struct kvs_error *err)
{
    const struct mdl_card *c = &m->card;
    uint64_t q = extent(c, HEADS_Q), k = extent(c, HEADS_K), v = extent(c, HEADS_V), all = q + k + v;
    kvs_status s = eng_model_piece(m, t, all, 0, q, &l->q_bias, err);
    if (s == KVS_OK) {
        s = eng_model_piece(m, t, all, q, k, &l->k_bias, err);
    }
    return s == KVS_OK ? eng_model_piece(m, t, all, q + k, v, &l->v_bias, err) : s;
}

static kvs_status take(struct eng_model *m, struct eng_layer *l, const struct slot *s, const struct mdl_tensor *t,
                       struct kvs_error *err)
{
    const struct mdl_card *c = &m->card;
    uint64_t rows = extent(c, s->rows), cols = extent(c, s->cols);
    void *field = field_of(l, s);
    switch (s->form) {
    case VECTOR: return eng_model_vector(m, t, cols, field, err);
    case TABLE:
    case TURNED: return eng_model_table(m, t, rows, cols, s->form == TURNED, field, err);
    case MATRIX: return eng_model_matrix(m, t, rows, cols, field, err);
    case QKV: return take_qkv(m, l, t, err);
    case QKV_BIAS: return take_qkv_bias(m, l, t, err);
    case EACH: return eng_model_each(m, t, c->experts.count, rows, 0, rows, cols, field, err);
    case EACH_HEAD: return eng_model_each(m, t, c->heads, rows, 0, rows, cols, field, err);
    case KV_B: return eng_model_kv_b(m, t, &l->latent, err);
    case EACH_GATE_UP: {
        kvs_status st = eng_model_each(m, t, c->experts.count, 2 * rows, 0, rows, cols, &l->gate_experts, err);
        return st == KVS_OK ? eng_model_each(m, t, c->experts.count, 2 * rows, rows, rows, cols, &l->up_experts, err)
                            : st;
    }
    case GATE_UP: {
        kvs_status st = eng_model_rows(m, t, 2 * rows, 0, rows, cols, &l->gate, err);
        return st == KVS_OK ? eng_model_rows(m, t, 2 * rows, rows, rows, cols, &l->up, err) : st;
    }
    }
    return KVS_SELF_INTERNAL;
}

static kvs_status layer_tensor(struct eng_model *m, uint32_t layer, struct mdl_str rest, const struct mdl_tensor *t,
                               struct kvs_error *err)
{
    if (layer >= m->card.layers) {
        return kvs_fail(err, KVS_SELF_MODEL, "tensor %.*s is beyond the last of %u layers", (int)t->name.len,
                        t->name.data, m->card.layers);
    }
    struct eng_parts parts = m->arch->parts(&m->card, layer);
    for (size_t i = 0; i < SLOTS; i++) {
        if ((slots[i].part & (parts.must | parts.may)) != 0 && is(rest, slots[i].name)) {
            return take(m, &m->layer[layer], &slots[i], t, err);
        }
    }
    return unknown(m, t, err);
}

kvs_status eng_tensor_take(struct eng_model *m, const struct mdl_tensor *t, struct kvs_error *err)
{
    const struct mdl_card *c = &m->card;
    uint32_t layer;
    struct mdl_str rest;
    if (block_name(t->name, &layer, &rest)) {
        return layer_tensor(m, layer, rest, t, err);
    }
    if (is(t->name, "token_embd.weight")) {
        return eng_model_matrix(m, t, c->vocab, c->width, &m->embed, err);
    }
    if (is(t->name, "output.weight")) {
        return eng_model_matrix(m, t, c->vocab, c->width, &m->output, err);
    }
    if (is(t->name, "output_norm.weight")) {
        return eng_model_vector(m, t, c->width, &m->output_norm, err);
    }
    if (is(t->name, "rope_freqs.weight")) {
        return eng_model_vector(m, t, c->rope.dims / 2, &m->rope_freqs, err);
    }
    if (c->rope.scaling == MDL_ROPE_LONGROPE && is(t->name, "rope_factors_long.weight")) {
        return eng_model_vector(m, t, c->rope.dims / 2, &m->rope_long, err);
    }
    if (c->rope.scaling == MDL_ROPE_LONGROPE && is(t->name, "rope_factors_short.weight")) {
        return eng_model_vector(m, t, c->rope.dims / 2, &m->rope_short, err);
    }
    return unknown(m, t, err);
}

kvs_status eng_tensors_complete(struct eng_model *m, struct kvs_error *err)
{
    for (uint32_t l = 0; l < m->card.layers; l++) {
        uint32_t must = m->arch->parts(&m->card, l).must;
        for (size_t i = 0; i < SLOTS; i++) {
            if ((slots[i].part & must) != 0 && slots[i].form != QKV && slots[i].form != QKV_BIAS &&
                slots[i].form != EACH_GATE_UP && slots[i].form != KV_B && data_of(&m->layer[l], &slots[i]) == NULL) {
                return kvs_fail(err, KVS_SELF_MODEL, "tensor blk.%u.%s is missing", l, slots[i].name);
            }
        }
    }
    if (m->embed.data == NULL || m->output_norm == NULL) {
        return kvs_fail(err, KVS_SELF_MODEL, "tensor %s is missing",
                        m->embed.data == NULL ? "token_embd.weight" : "output_norm.weight");
    }
    m->head = m->output.data != NULL ? &m->output : &m->embed;
    return KVS_OK;
}

void eng_tensors_free(struct eng_model *m)
{
    for (uint32_t i = 0; m->layer != NULL && i < m->card.layers; i++) {
        struct eng_layer *l = &m->layer[i];
        for (size_t j = 0; j < SLOTS; j++) {
            if (slots[j].form == VECTOR || slots[j].form == TABLE || slots[j].form == TURNED) {
                float **v = field_of(l, &slots[j]);
                free(*v);
                *v = NULL;
            } else if (slots[j].form == MATRIX) {
                struct eng_weight *w = field_of(l, &slots[j]);
                free(w->data);
                w->data = NULL;
            } else if (slots[j].form == EACH || slots[j].form == EACH_HEAD) {
                struct eng_weight **w = field_of(l, &slots[j]);
                free(*w != NULL ? (*w)[0].data : NULL);
                free(*w);
                *w = NULL;
            }
        }
    }
    free(m->embed.data);
    free(m->output.data);
    free(m->output_norm);
    free(m->rope_freqs);
    free(m->rope_long);
    free(m->rope_short);
}
