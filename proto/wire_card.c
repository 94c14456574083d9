/* wire_card.c - the messages of the cluster and of a daemon's service: member cards, lists of members, load,
 * health, model header.
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire_impl.h"

/* protobuf-c wants an array of pointers to groups; a card has at most MSG_GROUPS_MAX of them, so it lies on the
 * stack. */
struct card_wire {
    Kvasir__V1__MemberCard card;
    Kvasir__V1__GroupInfo group[MSG_GROUPS_MAX];
    Kvasir__V1__GroupInfo *group_at[MSG_GROUPS_MAX];
};

static kvs_status card_fill(const struct msg_card *m, struct card_wire *w)
{
    Kvasir__V1__MemberCard card = KVASIR__V1__MEMBER_CARD__INIT;
    if (m->group_count > MSG_GROUPS_MAX) {
        return KVS_REQ_INVALID;
    }
    card.id = msg_borrow(m->id);
    card.role = (Kvasir__V1__Role)m->role;
    card.epoch = m->epoch;
    card.control_url = msg_borrow(m->control_url);
    card.http_url = msg_borrow(m->http_url);
    card.model = msg_borrow(m->model);
    card.fingerprint = msg_fixed_view(m->fingerprint, sizeof m->fingerprint);
    card.numerics = msg_borrow(m->numerics);
    card.layout = msg_borrow(m->layout);
    card.kv_types = msg_borrow(m->kv_types);
    card.rope = msg_borrow(m->rope);
    card.block_tokens = m->block_tokens;
    card.context = m->context;
    card.vocab = m->vocab;
    card.protocol_min = m->protocol_min;
    card.protocol_max = m->protocol_max;
    card.draining = m->draining;
    card.pid = m->pid;
    card.n_groups = m->group_count;
    card.groups = w->group_at;
    for (uint32_t g = 0; g < m->group_count; g++) {
        Kvasir__V1__GroupInfo info = KVASIR__V1__GROUP_INFO__INIT;
        info.page_bytes = m->group[g].page_bytes;
        info.pages = m->group[g].pages;
        w->group[g] = info;
        w->group_at[g] = &w->group[g];
    }
    w->card = card;
    return KVS_OK;
}

static kvs_status card_take(const Kvasir__V1__MemberCard *w, struct msg_card *m, struct kvs_error *err)
{
    memset(m, 0, sizeof *m);
    kvs_status s = msg_check_id(w->id, "MemberCard.id", err);
    if (s != KVS_OK) {
        return s;
    }
    MSG_COPY_TEXT(m->id, w->id);
    m->role = (msg_role)w->role;
    m->epoch = w->epoch;
    MSG_COPY_TEXT(m->control_url, w->control_url);
    MSG_COPY_TEXT(m->http_url, w->http_url);
    MSG_COPY_TEXT(m->model, w->model);
    MSG_COPY_TEXT(m->numerics, w->numerics);
    MSG_COPY_TEXT(m->layout, w->layout);
    MSG_COPY_TEXT(m->kv_types, w->kv_types);
    MSG_COPY_TEXT(m->rope, w->rope);
    m->block_tokens = w->block_tokens;
    m->context = w->context;
    m->vocab = w->vocab;
    m->protocol_min = w->protocol_min;
    m->protocol_max = w->protocol_max;
    m->draining = w->draining != 0;
    m->pid = w->pid;
    m->group_count = (uint32_t)w->n_groups;
    KVS_ASSERT(m->group_count <= MSG_GROUPS_MAX); /* msg_scan has counted them */
    for (uint32_t g = 0; g < m->group_count; g++) {
        m->group[g] = (struct msg_group_info){.page_bytes = w->groups[g]->page_bytes, .pages = w->groups[g]->pages};
    }
    return msg_copy_fixed(m->fingerprint, sizeof m->fingerprint, &w->fingerprint, "MemberCard.fingerprint", err);
}

kvs_status msg_card_encode(const struct msg_card *m, struct kvs_buf *out)
{
    struct card_wire w;
    kvs_status s = card_fill(m, &w);
    return s == KVS_OK ? msg_pack_one(&w.card.base, out) : s;
}

kvs_status msg_card_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_card *out,
                           struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__member_card__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__MemberCard *w = (const Kvasir__V1__MemberCard *)base;
    if (w->role == KVASIR__V1__ROLE__ROLE_UNSPECIFIED) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "MemberCard has no role");
    }
    return card_take(w, out, err);
}

kvs_status msg_members_encode(const struct msg_members *m, struct kvs_buf *out)
{
    struct msg_pack p;
    msg_pack_begin(&p, out);
    for (uint32_t i = 0; i < m->count && p.status == KVS_OK; i++) {
        struct card_wire card;
        Kvasir__V1__Member w = KVASIR__V1__MEMBER__INIT;
        w.change = (Kvasir__V1__MemberChange)m->members[i].change;
        if (m->members[i].change != MSG_MEMBER_SNAPSHOT_END) {
            p.status = card_fill(&m->members[i].card, &card);
            w.card = &card.card;
        }
        msg_pack_sub(&p, 1, &w.base);
    }
    return msg_pack_end(&p, &kvasir__v1__member_list__descriptor);
}

static kvs_status member_take(const Kvasir__V1__Member *w, struct msg_member *m, struct kvs_error *err)
{
    memset(m, 0, sizeof *m);
    m->change = (msg_member_change)w->change;
    if (w->change == KVASIR__V1__MEMBER_CHANGE__MEMBER_CHANGE_UNSPECIFIED) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "Member has no change");
    }
    if (m->change == MSG_MEMBER_SNAPSHOT_END) {
        return KVS_OK;
    }
    if (w->card == NULL || (m->change == MSG_MEMBER_PUT && w->card->role == KVASIR__V1__ROLE__ROLE_UNSPECIFIED)) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "Member has no %s", w->card == NULL ? "card" : "role");
    }
    return card_take(w->card, &m->card, err);
}

kvs_status msg_members_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_members *out,
                              struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__member_list__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__MemberList *w = (const Kvasir__V1__MemberList *)base;
    struct msg_member *members = kvs_arena_array(a, w->n_members == 0 ? 1 : w->n_members, sizeof *members);
    if (members == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for a list of %zu members", w->n_members);
    }
    for (size_t i = 0; i < w->n_members; i++) {
        s = member_take(w->members[i], &members[i], err);
        if (s != KVS_OK) {
            return s;
        }
    }
    *out = (struct msg_members){.members = members, .count = (uint32_t)w->n_members};
    return KVS_OK;
}

static void speed_fill(const struct msg_speed *m, Kvasir__V1__Speed *w)
{
    w->prefill_fixed_s = m->prefill_fixed_s;
    w->prefill_token_s = m->prefill_token_s;
    w->prefill_pair_s = m->prefill_pair_s;
    w->prefill_samples = m->prefill_samples;
    w->step_fixed_s = m->step_fixed_s;
    w->step_sequence_s = m->step_sequence_s;
    w->step_context_s = m->step_context_s;
    w->step_samples = m->step_samples;
}

static void speed_take(const Kvasir__V1__Speed *w, struct msg_speed *m)
{
    *m = (struct msg_speed){.prefill_fixed_s = w->prefill_fixed_s,
                            .prefill_token_s = w->prefill_token_s,
                            .prefill_pair_s = w->prefill_pair_s,
                            .step_fixed_s = w->step_fixed_s,
                            .step_sequence_s = w->step_sequence_s,
                            .step_context_s = w->step_context_s,
                            .prefill_samples = w->prefill_samples,
                            .step_samples = w->step_samples};
}

kvs_status msg_load_encode(const struct msg_load *m, struct kvs_buf *out)
{
    Kvasir__V1__Load w = KVASIR__V1__LOAD__INIT;
    if (m->group_count > MSG_GROUPS_MAX || m->peer_count > MSG_PEERS_MAX) {
        return KVS_REQ_INVALID;
    }
    if (m->metrics_bytes > MSG_METRICS_MAX) {
        return KVS_REQ_TOO_LARGE;
    }
    if (m->metrics_bytes > 0 && strlen(m->metrics) != m->metrics_bytes) {
        return KVS_REQ_INVALID;
    }
    w.sequence = m->sequence;
    w.running = m->running;
    w.waiting = m->waiting;
    w.outstanding_tokens = m->outstanding_tokens;
    w.draining = m->draining;
    w.role = (Kvasir__V1__Role)m->role;
    w.metrics = msg_borrow(m->metrics_bytes > 0 ? m->metrics : "");
    w.prefill_left = m->prefill_left;
    w.context_tokens = m->context_tokens;
    w.decoding = m->decoding;
    w.chunk_tokens = m->chunk_tokens;
    Kvasir__V1__Speed speed = KVASIR__V1__SPEED__INIT;
    speed_fill(&m->speed, &speed);
    if (m->speed.prefill_samples > 0 || m->speed.step_samples > 0) {
        w.speed = &speed;
    }
    struct msg_pack p;
    msg_pack_begin(&p, out);
    msg_pack_put(&p, &w.base);
    for (uint32_t g = 0; g < m->group_count; g++) {
        Kvasir__V1__PagePool pool = KVASIR__V1__PAGE_POOL__INIT;
        pool.total = m->pages[g].total;
        pool.free = m->pages[g].free;
        pool.cached = m->pages[g].cached;
        pool.held = m->pages[g].held;
        pool.fenced = m->pages[g].fenced;
        msg_pack_sub(&p, 5, &pool.base);
    }
    for (uint32_t i = 0; i < m->peer_count; i++) {
        Kvasir__V1__PeerLink link = KVASIR__V1__PEER_LINK__INIT;
        link.id = msg_borrow(m->peers[i].id);
        link.transport = msg_borrow(m->peers[i].transport);
        link.latency_s = m->peers[i].latency_s;
        link.byte_s = m->peers[i].byte_s;
        link.samples = m->peers[i].samples;
        msg_pack_sub(&p, 6, &link.base);
    }
    return msg_pack_end(&p, &kvasir__v1__load__descriptor);
}

kvs_status msg_load_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_load *out,
                           struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__load__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__Load *w = (const Kvasir__V1__Load *)base;
    memset(out, 0, sizeof *out);
    out->sequence = w->sequence;
    out->running = w->running;
    out->waiting = w->waiting;
    out->outstanding_tokens = w->outstanding_tokens;
    out->draining = w->draining != 0;
    out->role = (msg_role)w->role;
    out->metrics = msg_text(w->metrics);
    out->metrics_bytes = (uint32_t)strlen(out->metrics);
    out->prefill_left = w->prefill_left;
    out->context_tokens = w->context_tokens;
    out->decoding = w->decoding;
    out->chunk_tokens = w->chunk_tokens;
    if (w->speed != NULL) {
        speed_take(w->speed, &out->speed);
    }
    out->group_count = (uint32_t)w->n_pools;
    out->peer_count = (uint32_t)w->n_peers;
    KVS_ASSERT(out->group_count <= MSG_GROUPS_MAX && out->peer_count <= MSG_PEERS_MAX);
    for (uint32_t g = 0; g < out->group_count; g++) {
        const Kvasir__V1__PagePool *pool = w->pools[g];
        out->pages[g] = (struct msg_pages){pool->total, pool->free, pool->cached, pool->held, pool->fenced};
    }
    for (uint32_t i = 0; i < out->peer_count; i++) {
        MSG_COPY_TEXT(out->peers[i].id, w->peers[i]->id);
        MSG_COPY_TEXT(out->peers[i].transport, w->peers[i]->transport);
        out->peers[i].latency_s = w->peers[i]->latency_s;
        out->peers[i].byte_s = w->peers[i]->byte_s;
        out->peers[i].samples = w->peers[i]->samples;
    }
    return KVS_OK;
}

kvs_status msg_health_encode(const struct msg_health *m, struct kvs_buf *out)
{
    Kvasir__V1__HealthCheckResponse w = KVASIR__V1__HEALTH_CHECK_RESPONSE__INIT;
    w.ready = m->ready;
    w.epoch = m->epoch;
    w.text = msg_borrow(m->text);
    return msg_pack_one(&w.base, out);
}

kvs_status msg_health_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_health *out,
                             struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__health_check_response__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__HealthCheckResponse *w = (const Kvasir__V1__HealthCheckResponse *)base;
    *out = (struct msg_health){.ready = w->ready != 0, .epoch = w->epoch};
    MSG_COPY_TEXT(out->text, w->text);
    return KVS_OK;
}

kvs_status msg_model_info_piece_encode(const struct msg_model_info_piece *m, struct kvs_buf *out)
{
    Kvasir__V1__GetModelInfoResponse w = KVASIR__V1__GET_MODEL_INFO_RESPONSE__INIT;
    w.offset = m->offset;
    w.total = m->total;
    w.data.len = m->count;
    memcpy(&w.data.data, &m->bytes, sizeof m->bytes);
    return msg_pack_one(&w.base, out);
}

kvs_status msg_model_info_piece_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a,
                                       struct msg_model_info_piece *out, struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__get_model_info_response__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__GetModelInfoResponse *w = (const Kvasir__V1__GetModelInfoResponse *)base;
    if (w->total > MSG_MODEL_HEADER_MAX || w->offset > w->total || w->data.len > w->total - w->offset) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "GetModelInfoResponse: piece of %zu bytes at %llu of %llu", w->data.len,
                        (unsigned long long)w->offset, (unsigned long long)w->total);
    }
    *out = (struct msg_model_info_piece){
        .offset = w->offset, .total = w->total, .bytes = w->data.data, .count = (uint32_t)w->data.len};
    return KVS_OK;
}
