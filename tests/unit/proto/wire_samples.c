/* wire_samples.c - the values of make_golden.py once more, in C, as far from zero as their types allow.
 * SPDX-License-Identifier: Apache-2.0 */
#include "wire_samples.h"
#include "golden.h"

static const int32_t generate_ids[] = {1, 300, 2, INT32_MAX};
static const int32_t generate_stops[] = {2, 0};
static const int32_t prefill_ids[] = {9, 8, 0};
static const int32_t chunk_ids[] = {5, 6};
static const struct msg_want prefill_wants[] = {{0, 0}, {0, 1}, {200, 1}, {UINT32_MAX, 0xffff}};
static const struct msg_want nack_wants[] = {{7, 2}, {UINT32_MAX, 0xffff}};
static const uint8_t link_address[] = {1, 0, 2};

static void count_up(uint8_t *bytes, size_t n, uint8_t first)
{
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(first + i);
    }
}

static void sample_hello(struct msg_hello *m)
{
    *m = (struct msg_hello){.protocol_min = 1,
                            .protocol_max = UINT32_MAX,
                            .id = "prefill-0",
                            .epoch = UINT64_MAX,
                            .role = MSG_ROLE_PREFILL,
                            .numerics = "x86",
                            .auth = "key",
                            .pid_namespace = 4026531836u,
                            .uid = 1000,
                            .pid = UINT32_MAX,
                            .probe_address = (UINT64_C(1) << 47) - 1,
                            .probe_value = UINT64_C(1) << 63};
    count_up(m->fingerprint, 32, 1);
    count_up(m->boot_id, 16, 0);
}

static void sample_call(struct msg_call *m)
{
    static const uint8_t body[] = {0, 255};
    *m = (struct msg_call){
        .method = MSG_DRAIN, .remaining_ms = UINT32_MAX, .trace = "t\xc3\xbc", .body = body, .body_bytes = 2};
}

static void sample_generate(struct msg_generate *m)
{
    *m = (struct msg_generate){
        .request = 0x1122334455667788,
        .attempt = 2,
        .choice = 1,
        .tokens = generate_ids,
        .token_count = 4,
        .prompt_count = 3,
        .first_index = 1,
        .max_tokens = 16,
        .sampling = {.temperature = 0.5f, .top_p = 0.25f, .min_p = 0.125f, .top_k = 40, .seed = UINT64_MAX},
        .stop_ids = generate_stops,
        .stop_id_count = 2,
        .ignore_eos = true,
        .logits = true,
        .adapter = "ad",
        .tenant = "t\xc3\xbc",
        .cache_salt = "sa",
        .trace = "tr",
        .priority = INT32_MIN,
        .placement = MSG_PLACE_REMOTE,
        .prefill_worker = "prefill-0",
        .model = "smollm2",
        .prompt = "\xe4\xbd\xa0\xe5\xa5\xbd",
        .prompt_bytes = 6};
}

static void sample_tokens(struct msg_tokens *m)
{
    static const struct msg_token entries[] = {{.request = 5,
                                                .attempt = 1,
                                                .choice = 3,
                                                .index = 9,
                                                .id = 42,
                                                .logit = 1.5f,
                                                .logprob = -0.5f,
                                                .has_placed = true,
                                                .placed = {.mode = MSG_PLACE_REMOTE,
                                                           .prefill_worker = "p",
                                                           .transport = "shm",
                                                           .cached_tokens = 1,
                                                           .local_prefill_tokens = 2,
                                                           .pages = 12,
                                                           .bytes = UINT64_MAX,
                                                           .transfer_us = 3,
                                                           .prefill_us = 4,
                                                           .queue_us = 5,
                                                           .exposed_us = 6}},
                                               {.request = 5,
                                                .attempt = 1,
                                                .index = 1,
                                                .id = -1,
                                                .finish = MSG_FINISH_ERROR,
                                                .error = KVS_PEER_LOST,
                                                .text = "gone"}};
    *m = (struct msg_tokens){.entries = entries, .count = 2};
}

static void sample_prefill(struct msg_prefill *m)
{
    *m = (struct msg_prefill){.request = 1,
                              .xfer = 2,
                              .sink_epoch = 3,
                              .nonce = UINT64_MAX,
                              .tokens = prefill_ids,
                              .token_count = 3,
                              .wants = prefill_wants,
                              .want_count = 4,
                              .logits = true,
                              .adapter = "a",
                              .tenant = "t",
                              .cache_salt = "s",
                              .priority = INT32_MAX};
}

static void sample_end(struct msg_end *m)
{
    *m = (struct msg_end){.status = KVS_PEER_TIMEOUT,
                          .text = "quiet",
                          .pages_sent = 1,
                          .prefill_tokens = 2,
                          .cached_tokens = 3,
                          .chunks = 4,
                          .prefill_us = UINT64_MAX};
}

static void sample_nack(struct msg_nack *m)
{
    *m = (struct msg_nack){.missing = nack_wants, .count = 2};
}

static void sample_abort(struct msg_abort *m)
{
    *m = (struct msg_abort){.request = UINT64_MAX, .attempt = UINT32_MAX, .keep = true};
}

static void sample_set_role(struct msg_set_role *m)
{
    *m = (struct msg_set_role){.role = MSG_ROLE_BOTH};
}

static void sample_pause(struct msg_pause *m)
{
    *m = (struct msg_pause){.request = 9};
}

static void sample_link(struct msg_link *m)
{
    *m = (struct msg_link){.near_ok = true, .generation = 3, .address = link_address, .address_bytes = 3,
                           .address_check = UINT64_MAX - 1};
}

static void sample_card(struct msg_card *m)
{
    *m = (struct msg_card){.role = MSG_ROLE_BOTH,
                           .epoch = UINT64_MAX,
                           .control_url = "ipc:///c",
                           .http_url = "http://h",
                           .model = "m",
                           .numerics = "n",
                           .layout = "l",
                           .kv_types = "k=f16,v=f16",
                           .rope = "r",
                           .block_tokens = 64,
                           .context = 2048,
                           .vocab = 49152,
                           .protocol_min = 1,
                           .protocol_max = UINT32_MAX,
                           .group_count = 2,
                           .group = {{UINT64_MAX, UINT32_MAX}, {1, 2}},
                           .draining = true,
                           .pid = 77};
    memset(m->id, 'w', sizeof m->id - 1);
    count_up(m->fingerprint, 32, 0);
}

static void sample_members(struct msg_members *m)
{
    static struct msg_member members[3];
    members[0].change = MSG_MEMBER_PUT;
    sample_card(&members[0].card);
    members[1] = (struct msg_member){.change = MSG_MEMBER_GONE, .card = {.id = "x", .epoch = 4}};
    members[2].change = MSG_MEMBER_SNAPSHOT_END;
    *m = (struct msg_members){.members = members, .count = 3};
}

static void sample_load(struct msg_load *m)
{
    *m = (struct msg_load){.sequence = UINT64_MAX,
                           .running = 1,
                           .waiting = 2,
                           .outstanding_tokens = 3,
                           .group_count = 2,
                           .pages = {{100, 1, 2, 3, 94}, {1, 0, 0, 0, 0}},
                           .peer_count = 1,
                           .peers = {{"decode-0", "shm", 0.5, 1e-9, 7}},
                           .draining = true,
                           .metrics = "a 1\n",
                           .metrics_bytes = 4,
                           .speed = {0.25, 1e-3, 1e-9, 0.125, 2e-3, 3e-6, 4, UINT32_MAX},
                           .prefill_left = UINT64_MAX - 1,
                           .context_tokens = 4096,
                           .decoding = 5,
                           .chunk_tokens = 128,
                           .role = MSG_ROLE_PREFILL};
}

static void sample_cache_events(struct msg_cache_events *m)
{
    static uint8_t hashes[3 * MSG_BLOCK_HASH_BYTES];
    static const uint32_t depths[] = {1, 0, UINT32_MAX};
    count_up(hashes, sizeof hashes, 0);
    *m = (struct msg_cache_events){.first_sequence = UINT64_MAX,
                                   .snapshot_begin = true,
                                   .snapshot_end = true,
                                   .hashes = hashes,
                                   .depths = depths,
                                   .count = 3};
}

static void sample_cache_digest(struct msg_cache_digest *m)
{
    static uint8_t hashes[2 * MSG_BLOCK_HASH_BYTES];
    static const uint32_t blocks[] = {300, UINT32_MAX};
    count_up(hashes, sizeof hashes, 100);
    *m = (struct msg_cache_digest){.epoch = UINT64_MAX - 2, .hashes = hashes, .blocks = blocks, .count = 2};
}

static void sample_health(struct msg_health *m)
{
    *m = (struct msg_health){.ready = true, .epoch = 8, .text = "ok"};
}

static void sample_model_info_piece(struct msg_model_info_piece *m)
{
    static const uint8_t data[] = {'G', 'G', 'U', 'F'};
    *m = (struct msg_model_info_piece){.offset = 3, .total = 32u << 20, .bytes = data, .count = 4};
}

static void sample_chunk(struct msg_chunk *m)
{
    *m = (struct msg_chunk){.choice = 1,
                            .token_ids = chunk_ids,
                            .token_count = 2,
                            .text = " \xc3\xa9",
                            .text_bytes = 3,
                            .finish = MSG_FINISH_LENGTH,
                            .prompt_tokens = 7,
                            .completion_tokens = 8,
                            .cached_tokens = 9};
}

#define CODEC(name)                                                                                                  \
    static kvs_status encode_sample_##name(struct kvs_buf *out)                                                      \
    {                                                                                                                \
        struct msg_##name m;                                                                                         \
        sample_##name(&m);                                                                                           \
        return msg_##name##_encode(&m, out);                                                                         \
    }                                                                                                                \
    static kvs_status decode_##name(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct kvs_error *err)      \
    {                                                                                                                \
        struct msg_##name m;                                                                                         \
        return msg_##name##_decode(bytes, n, a, &m, err);                                                            \
    }                                                                                                                \
    static kvs_status decode_encode_##name(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct kvs_buf *out, \
                                           struct kvs_error *err)                                                    \
    {                                                                                                                \
        struct msg_##name m;                                                                                         \
        kvs_status s = msg_##name##_decode(bytes, n, a, &m, err);                                                    \
        return s == KVS_OK ? msg_##name##_encode(&m, out) : s;                                                       \
    }
#define ROW(name, message)                                                                                      \
    {                                                                                                           \
#name, &kvasir__v1__##message##__descriptor, golden_##name, sizeof golden_##name, encode_sample_##name, \
            decode_##name, decode_encode_##name                                                                 \
    }
CODEC(hello)
CODEC(call)
CODEC(generate)
CODEC(tokens)
CODEC(prefill)
CODEC(end)
CODEC(nack)
CODEC(abort)
CODEC(set_role)
CODEC(pause)
CODEC(link)
CODEC(card)
CODEC(members)
CODEC(load)
CODEC(cache_events)
CODEC(cache_digest)
CODEC(health)
CODEC(model_info_piece)
CODEC(chunk)

const struct sample samples[] = {
    ROW(hello, hello),
    ROW(call, call),
    ROW(generate, generate_request),
    ROW(tokens, token_batch),
    ROW(prefill, prefill_request),
    ROW(end, end),
    ROW(nack, nack),
    ROW(abort, abort_request),
    ROW(set_role, role_request),
    ROW(pause, sequence_ref),
    ROW(link, link_request),
    ROW(card, member_card),
    ROW(members, member_list),
    ROW(load, load),
    ROW(cache_events, cache_events),
    ROW(cache_digest, cache_digest),
    ROW(health, health_check_response),
    ROW(model_info_piece, get_model_info_response),
    ROW(chunk, generate_response),
};
const size_t sample_count = sizeof samples / sizeof samples[0];
