/* msg.h - the messages of Kvasir as plain structs: what cores see. proto/kvasir.proto is their wire form
 * (protobuf-c), wire.h converts.
 * Pure data. After decoding, pointers lie in the caller's kvs_arena; before encoding, they are borrowed. Strings
 * are NUL-terminated, never NULL after decoding, and bounded by the limits here; a message over its limits does not
 * decode (KVS_PEER_PROTOCOL, with the field).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PROTO_MSG_H
#define KVS_PROTO_MSG_H

#include "base/status.h"

#define MSG_PROTOCOL_MIN 1
#define MSG_PROTOCOL_MAX 1
#define MSG_ID_MAX 64 /* worker and tenant names, bytes with the NUL */
#define MSG_URL_MAX 256
#define MSG_TEXT_MAX 1024     /* error texts */
#define MSG_TOKENS_MAX 262144 /* tokens of one sequence on the wire */
#define MSG_WANTS_MAX 65536
#define MSG_GROUPS_MAX 64
#define MSG_ENTRIES_MAX 16384 /* token entries of one step */
#define MSG_MEMBERS_MAX 1024  /* members in one list */
#define MSG_PEERS_MAX 256
#define MSG_CACHE_BLOCKS_MAX 4096  /* blocks in one item of Cache */
#define MSG_DIGEST_BLOCKS_MAX 512  /* prefixes in one segment of a digest */
#define MSG_BLOCK_HASH_BYTES 16
#define MSG_METRICS_MAX 262144
#define MSG_MODEL_HEADER_MAX (32u << 20)

typedef enum msg_method {
    MSG_GENERATE = 1, /* router -> decode worker, or client -> router */
    MSG_PREFILL = 2,  /* sink -> source: compute these and ship them */
    MSG_FETCH = 3,    /* sink -> source: you have these, ship them */
    MSG_TOKENS = 4,   /* router -> decode worker: one long call, an ITEM (msg_tokens) a step */
    MSG_ABORT = 5,
    MSG_HEALTH = 6,
    MSG_MODEL_INFO = 7, /* router -> worker: ITEMs with pieces of the GGUF header, END */
    MSG_LINK = 8,       /* worker <-> worker: transport lane and UCX address */
    MSG_REGISTER = 9,   /* worker -> router (embedded discovery): card in, ITEMs msg_members out */
    MSG_LOAD = 10,      /* router -> worker: an ITEM (msg_load) every 250 ms */
    MSG_DRAIN = 11,
    MSG_CACHE = 12,    /* router -> worker: one long call, ITEMs msg_cache_events; it begins with a snapshot */
    MSG_SET_ROLE = 13, /* router -> worker: msg_set_role */
    MSG_CACHE_FLUSH = 14, /* router -> worker: forget all cached prefixes; END.cached_tokens: tokens forgotten */
    MSG_METHOD_LAST = MSG_CACHE_FLUSH
} msg_method;

typedef enum msg_role {
    MSG_ROLE_ROUTER = 1,
    MSG_ROLE_PREFILL = 2,
    MSG_ROLE_DECODE = 3,
    MSG_ROLE_BOTH = 4,
    MSG_ROLE_CLIENT = 5
} msg_role;
const char *msg_role_name(msg_role r); /* "router", "prefill", "decode", "both", "client" */
const char *msg_method_name(msg_method m);

struct msg_hello {
    uint32_t protocol_min, protocol_max;
    char id[MSG_ID_MAX];
    uint64_t epoch;
    msg_role role;
    uint8_t fingerprint[32]; /* zero for routers and clients */
    char numerics[128];
    char auth[128];
    /* same-host probe, see kvtransfer/port.h */
    uint8_t boot_id[16];
    uint64_t pid_namespace;
    uint32_t uid, pid;
    uint64_t probe_address, probe_value;
};

/* CALL's envelope: method, remaining time, trace id; the method's own message is the body. */
struct msg_call {
    msg_method method;
    uint32_t remaining_ms; /* 0: no deadline (Tokens, Load, Register) */
    char trace[MSG_ID_MAX];
    const uint8_t *body;
    uint32_t body_bytes;
};

struct msg_sampling {
    float temperature, top_p, min_p;
    uint32_t top_k;
    uint64_t seed;
};

typedef enum msg_placement { MSG_PLACE_AUTO = 0, MSG_PLACE_LOCAL = 1, MSG_PLACE_REMOTE = 2 } msg_placement;

/* A sequence's whole state is here: a retry, a preemption and a migration are the same message with more tokens. */
struct msg_generate {
    uint64_t request;
    uint32_t attempt, choice;
    const int32_t *tokens; /* prompt, then what was already emitted */
    uint32_t token_count, prompt_count;
    uint32_t first_index; /* index of the first token to emit = tokens emitted before */
    uint32_t max_tokens;  /* of the whole answer, counted from index 0 */
    struct msg_sampling sampling;
    const int32_t *stop_ids; /* ids that end the sequence (EOG); emitted as the last token */
    uint32_t stop_id_count;
    bool ignore_eos;
    bool logits; /* send each token's logit */
    char adapter[MSG_ID_MAX], tenant[MSG_ID_MAX], cache_salt[128], trace[MSG_ID_MAX];
    int32_t priority;
    msg_placement placement;         /* LOCAL or REMOTE between router and worker; AUTO from clients */
    char prefill_worker[MSG_ID_MAX]; /* REMOTE: who prefills */
    char fetch_worker[MSG_ID_MAX];   /* who is believed to have KV of the first fetch_tokens tokens; "": nobody. A hint: tried first */
    uint32_t fetch_tokens;
    /* client -> router only: */
    char model[128];
    const char *prompt; /* text; "" when tokens are given */
    uint32_t prompt_bytes;
};

typedef enum msg_finish {
    MSG_RUNNING = 0,
    MSG_FINISH_STOP = 1,
    MSG_FINISH_LENGTH = 2,
    MSG_FINISH_ABORT = 3,
    MSG_FINISH_ERROR = 4
} msg_finish;

/* Where and how the prompt's KV came to be: first token's entry carries it, x-kvasir-placement shows it. */
struct msg_placed {
    msg_placement mode;
    char prefill_worker[MSG_ID_MAX]; /* = decode worker when local */
    char transport[16];              /* "shm", "tcp", "none" */
    uint32_t cached_tokens, local_prefill_tokens;
    uint32_t pages;
    uint64_t bytes;
    uint64_t transfer_us, prefill_us, queue_us,
        exposed_us; /* exposed: last prefill step done -> first token possible */
};
struct msg_token {
    uint64_t request;
    uint32_t attempt, choice, index;
    int32_t id; /* -1: no token in this entry (an end without one) */
    float logit, logprob;
    msg_finish finish; /* != RUNNING: the last entry of this sequence */
    kvs_status error;  /* with MSG_FINISH_ERROR / ABORT */
    char text[256];    /* error's cause, "" otherwise */
    bool has_placed;
    struct msg_placed placed;
};
struct msg_tokens {
    const struct msg_token *entries;
    uint32_t count;
};

struct msg_want {
    uint32_t block;
    uint32_t group;
};
struct msg_prefill {
    uint64_t request;
    uint64_t xfer, sink_epoch, nonce;
    const int32_t *tokens; /* positions 0 .. count-1; KV of all of them is made; logits of the last row are sent */
    uint32_t token_count;
    const struct msg_want *wants; /* ordered by block, then group */
    uint32_t want_count;
    bool logits;
    char adapter[MSG_ID_MAX], tenant[MSG_ID_MAX], cache_salt[128];
    int32_t priority;
};
struct msg_end { /* END's payload, all methods */
    kvs_status status;
    char text[256];
    uint32_t pages_sent;     /* Prefill, Fetch: messages sent, logits included */
    uint32_t prefill_tokens; /* Prefill: tokens computed */
    uint32_t cached_tokens;
    uint32_t chunks;
    uint64_t prefill_us;
};
struct msg_nack {
    const struct msg_want *missing; /* group 0xffff, block 0xffffffff = logits */
    uint32_t count;
};
struct msg_abort {
    uint64_t request;
    uint32_t attempt; /* this one and earlier ones */
    bool keep;        /* another worker will fetch its KV: stay until an Abort without this, or some time */
};
struct msg_set_role {
    msg_role role; /* PREFILL, DECODE or BOTH */
};
struct msg_pause { /* PAUSE and RESUME frames on the Tokens call */
    uint64_t request;
};
/* Lane and address of a worker pair. The dialer calls Link with its lane verdict; the answer's END carries nothing,
 * both sides send one msg_link each: caller in CALL, callee in an ITEM. */
struct msg_link {
    bool near_ok; /* our process_vm_readv of the peer's probe worked and our config allows near */
    uint32_t generation;
    const uint8_t
        *address; /* UCX worker address, at most 1024 bytes; empty in the first exchange (lane verdicts only) */
    uint32_t address_bytes;
    uint64_t address_check; /* binds the address to the two lives that exchange it */
};
struct msg_group_info {
    uint64_t page_bytes;
    uint32_t pages;
};
/* Member card: what discovery publishes, under 1 KB on the wire. */
struct msg_card {
    char id[MSG_ID_MAX];
    msg_role role;
    uint64_t epoch;
    char control_url[MSG_URL_MAX]; /* where others dial */
    char http_url[MSG_URL_MAX];
    char model[128]; /* name users ask for */
    uint8_t fingerprint[32];
    char numerics[128], layout[512], kv_types[32], rope[160];
    uint32_t block_tokens, context, vocab;
    uint32_t protocol_min, protocol_max;
    uint32_t group_count;
    struct msg_group_info group[MSG_GROUPS_MAX];
    bool draining;
    uint32_t pid;
};
typedef enum msg_member_change {
    MSG_MEMBER_PUT = 1,
    MSG_MEMBER_GONE = 2,
    MSG_MEMBER_SNAPSHOT_END = 3
} msg_member_change;
struct msg_member {
    msg_member_change change;
    struct msg_card card; /* PUT: whole; GONE: id and epoch */
};
struct msg_members {
    const struct msg_member *members;
    uint32_t count;
};
struct msg_pages {
    uint32_t total, free, cached, held, fenced;
};
struct msg_peer_link {
    char id[MSG_ID_MAX];
    char transport[16];
    /* measured by the sink: a transfer of n bytes from that peer shows latency_s + n * byte_s; samples 0: not measured yet */
    double latency_s, byte_s;
    uint32_t samples;
};
/* What a worker's steps take, fitted by itself to what it has seen; samples 0: not measured yet.
 * A step with prompt chunks: prefill_fixed_s + tokens * prefill_token_s + (sum over tokens of positions attended to) * prefill_pair_s.
 * A step of running sequences: step_fixed_s + sequences * step_sequence_s + (sum of their contexts) * step_context_s. */
struct msg_speed {
    double prefill_fixed_s, prefill_token_s, prefill_pair_s;
    double step_fixed_s, step_sequence_s, step_context_s;
    uint32_t prefill_samples, step_samples;
};
struct msg_load {
    uint64_t sequence;
    uint32_t running, waiting;   /* sequences */
    uint64_t outstanding_tokens; /* prompt tokens still to compute + answers still to write (bounded by max_tokens) */
    uint32_t group_count;
    struct msg_pages pages[MSG_GROUPS_MAX];
    uint32_t peer_count;
    struct msg_peer_link peers[MSG_PEERS_MAX];
    bool draining;
    const char *metrics; /* Prometheus text of the worker, at most 256 KiB */
    uint32_t metrics_bytes;
    msg_role role; /* what it is now; 0: not said, as its card says */
    struct msg_speed speed;
    uint64_t prefill_left;   /* prompt tokens that are to be computed here */
    uint64_t context_tokens; /* tokens of the sequences that write */
    uint32_t decoding;       /* such sequences */
    uint32_t chunk_tokens;   /* prompt tokens a step; 0: not told */
};
struct msg_cache_events {
    uint64_t first_sequence; /* of the first event here; with a snapshot: of the first event after it */
    bool snapshot_begin, snapshot_end;
    const uint8_t *hashes;  /* count x MSG_BLOCK_HASH_BYTES */
    const uint32_t *depths; /* of each: blocks of the prefix that ends with it, or 0: it is gone */
    uint32_t count;
};
struct msg_cache_digest {
    uint64_t epoch;
    const uint8_t *hashes;
    const uint32_t *blocks; /* length of each prefix, at least 1 */
    uint32_t count;
};
struct msg_health {
    bool ready;
    uint64_t epoch;
    char text[256];
};
struct msg_model_info_piece {
    uint64_t offset, total; /* of the header bytes; total at most 32 MiB */
    const uint8_t *bytes;
    uint32_t count;
};
/* router -> client on control streams: an ITEM of Generate. */
struct msg_chunk {
    uint32_t choice;
    const int32_t *token_ids;
    uint32_t token_count;
    const char *text;
    uint32_t text_bytes;
    msg_finish finish;
    uint32_t prompt_tokens, completion_tokens, cached_tokens; /* with finish */
};

#endif
