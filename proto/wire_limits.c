/* wire_limits.c - how long each text may be and how many entries each list may have, in one table.
 * A string, bytes or repeated field without a row is refused, so that a field added to the .proto file cannot be
 * forgotten here; a unit test walks all descriptors and asks for the row. Text fields that land in a char array of
 * msg.h have the array's size - 1.
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/frame.h"
#include "proto/wire_impl.h"

#define TEXT_OF(type, member) (uint32_t)(sizeof(((struct type *)0)->member) - 1)
#define ROWS(message, ...) static const struct msg_limit message##_rows[] = {__VA_ARGS__}
#define TABLE(message)                                                                                         \
    {                                                                                                          \
        &kvasir__v1__##message##__descriptor, message##_rows, sizeof message##_rows / sizeof message##_rows[0] \
    }

ROWS(hello, {"id", TEXT_OF(msg_hello, id)}, {"fingerprint", 32}, {"numerics", TEXT_OF(msg_hello, numerics)},
     {"auth", TEXT_OF(msg_hello, auth)}, {"boot_id", 16});
ROWS(call, {"trace_id", TEXT_OF(msg_call, trace)}, {"body", MSG_PAYLOAD_MAX});
ROWS(end, {"text", TEXT_OF(msg_end, text)});
ROWS(nack, {"missing_blocks", MSG_WANTS_MAX}, {"missing_groups", MSG_WANTS_MAX});
ROWS(link_request, {"address", 1024});
ROWS(generate_request, {"token_ids", MSG_TOKENS_MAX}, {"stop_token_ids", 64},
     {"adapter", TEXT_OF(msg_generate, adapter)}, {"tenant", TEXT_OF(msg_generate, tenant)},
     {"cache_salt", TEXT_OF(msg_generate, cache_salt)}, {"trace_id", TEXT_OF(msg_generate, trace)},
     {"prefill_worker", TEXT_OF(msg_generate, prefill_worker)}, {"model", TEXT_OF(msg_generate, model)},
     {"prompt", MSG_PAYLOAD_MAX}, {"fetch_worker", TEXT_OF(msg_generate, fetch_worker)});
ROWS(generate_response, {"token_ids", MSG_TOKENS_MAX}, {"text", MSG_PAYLOAD_MAX});
ROWS(placed, {"prefill_worker", TEXT_OF(msg_placed, prefill_worker)}, {"transport", TEXT_OF(msg_placed, transport)});
ROWS(token_entry, {"text", TEXT_OF(msg_token, text)});
ROWS(token_batch, {"entries", MSG_ENTRIES_MAX});
ROWS(prefill_request, {"token_ids", MSG_TOKENS_MAX}, {"want_blocks", MSG_WANTS_MAX}, {"want_groups", MSG_WANTS_MAX},
     {"adapter", TEXT_OF(msg_prefill, adapter)}, {"tenant", TEXT_OF(msg_prefill, tenant)},
     {"cache_salt", TEXT_OF(msg_prefill, cache_salt)});
ROWS(member_card, {"id", TEXT_OF(msg_card, id)}, {"control_url", TEXT_OF(msg_card, control_url)},
     {"http_url", TEXT_OF(msg_card, http_url)}, {"model", TEXT_OF(msg_card, model)}, {"fingerprint", 32},
     {"numerics", TEXT_OF(msg_card, numerics)}, {"layout", TEXT_OF(msg_card, layout)},
     {"kv_types", TEXT_OF(msg_card, kv_types)}, {"rope", TEXT_OF(msg_card, rope)}, {"groups", MSG_GROUPS_MAX});
ROWS(member_list, {"members", MSG_MEMBERS_MAX});
ROWS(peer_link, {"id", TEXT_OF(msg_peer_link, id)}, {"transport", TEXT_OF(msg_peer_link, transport)});
ROWS(load, {"pools", MSG_GROUPS_MAX}, {"peers", MSG_PEERS_MAX}, {"metrics", MSG_METRICS_MAX});
ROWS(cache_events, {"hashes", MSG_CACHE_BLOCKS_MAX * MSG_BLOCK_HASH_BYTES}, {"depths", MSG_CACHE_BLOCKS_MAX});
ROWS(cache_digest, {"hashes", MSG_DIGEST_BLOCKS_MAX * MSG_BLOCK_HASH_BYTES}, {"blocks", MSG_DIGEST_BLOCKS_MAX});
ROWS(health_check_response, {"text", TEXT_OF(msg_health, text)});
ROWS(get_model_info_response, {"data", MSG_PAYLOAD_MAX});

const struct msg_limits msg_limits_table[] = {
    TABLE(hello),
    TABLE(call),
    TABLE(end),
    TABLE(nack),
    TABLE(link_request),
    TABLE(generate_request),
    TABLE(generate_response),
    TABLE(placed),
    TABLE(token_entry),
    TABLE(token_batch),
    TABLE(prefill_request),
    TABLE(member_card),
    TABLE(member_list),
    TABLE(peer_link),
    TABLE(load),
    TABLE(cache_events),
    TABLE(cache_digest),
    TABLE(health_check_response),
    TABLE(get_model_info_response),
};
const size_t msg_limits_count = sizeof msg_limits_table / sizeof msg_limits_table[0];

bool msg_limit_of(const ProtobufCMessageDescriptor *d, const char *field, uint32_t *max_out)
{
    for (size_t i = 0; i < msg_limits_count; i++) {
        if (msg_limits_table[i].message != d) {
            continue;
        }
        for (size_t r = 0; r < msg_limits_table[i].row_count; r++) {
            if (strcmp(msg_limits_table[i].rows[r].field, field) == 0) {
                *max_out = msg_limits_table[i].rows[r].max;
                return true;
            }
        }
    }
    return false;
}
