/* serve.c - see serve.h. A listener is one long call; the table is bounded, and a slow reader costs nobody else: its stream's own bound
 * closes it (net/rpc.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/edge/serve.h"

#include "proto/frame.h"
#include "proto/wire.h"
#include "sys/log.h"
#include "worker/edge/cache.h"
#include <stdlib.h>
#include <string.h>

#define LISTENERS_MAX 32
#define PIECE_BYTES (64u << 10)
#define METRICS_MAX (256u << 10)

struct listener {
    net_conn conn; /* 0: free */
    uint32_t stream;
    msg_method method; /* LOAD or MODEL_INFO */
    uint64_t offset;   /* MODEL_INFO: next byte to send */
};

struct wrk_serve {
    struct wrk_worker *w;
    const struct wrk_loaded *loaded;
    struct listener listener[LISTENERS_MAX];
    uint64_t report_sequence;
    uint64_t told; /* prompt tokens to be read, in the last report */
    struct wrk_cache *cache;
};

kvs_status wrk_serve_create(struct wrk_worker *w, const struct wrk_loaded *loaded, struct wrk_serve **out)
{
    struct wrk_serve *s = calloc(1, sizeof *s);
    if (s == NULL)
        return KVS_SELF_NOMEM;
    s->w = w;
    s->loaded = loaded;
    if (wrk_cache_create(w, &s->cache) != KVS_OK) {
        wrk_serve_destroy(s);
        return KVS_SELF_NOMEM;
    }
    *out = s;
    return KVS_OK;
}

struct wrk_cache *wrk_serve_cache(struct wrk_serve *s)
{
    return s->cache;
}

void wrk_serve_destroy(struct wrk_serve *s)
{
    if (s != NULL)
        wrk_cache_destroy(s->cache);
    free(s);
}

static void end_call(struct wrk_serve *s, net_conn conn, uint32_t stream, kvs_status st, const char *text)
{
    struct msg_end end = {.status = st};
    kvs_format(end.text, sizeof end.text, "%s", text);
    net_rpc_end(wrk_worker_rpc(s->w), conn, stream, &end);
}

static void answer_health(struct wrk_serve *s, net_conn conn, uint32_t stream)
{
    struct msg_health h = {.ready = true, .epoch = wrk_worker_card(s->w)->epoch};
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_health_encode(&h, &body);
    if (st == KVS_OK)
        st = net_rpc_item(wrk_worker_rpc(s->w), conn, stream, body.data, body.len);
    kvs_buf_fini(&body);
    end_call(s, conn, stream, st, "");
}

bool wrk_serve_call(struct wrk_serve *s, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    if (call->method == MSG_HEALTH) {
        answer_health(s, conn, stream);
        return true;
    }
    if (call->method == MSG_CACHE) {
        wrk_cache_call(s->cache, conn, stream);
        return true;
    }
    if (call->method != MSG_LOAD && call->method != MSG_MODEL_INFO)
        return false;
    for (uint32_t i = 0; i < LISTENERS_MAX; i++) {
        if (s->listener[i].conn != 0)
            continue;
        s->listener[i] = (struct listener){.conn = conn, .stream = stream, .method = call->method};
        wrk_serve_pump(s);
        return true;
    }
    end_call(s, conn, stream, KVS_BUSY_FULL, "this worker reports to enough routers already");
    return true;
}

bool wrk_serve_cancel(struct wrk_serve *s, net_conn conn, uint32_t stream)
{
    for (uint32_t i = 0; i < LISTENERS_MAX; i++) {
        if (s->listener[i].conn != conn || s->listener[i].stream != stream)
            continue;
        memset(&s->listener[i], 0, sizeof s->listener[i]);
        end_call(s, conn, stream, KVS_REQ_CANCELLED, "");
        return true;
    }
    return wrk_cache_cancel(s->cache, conn, stream);
}

void wrk_serve_conn_down(struct wrk_serve *s, net_conn conn)
{
    for (uint32_t i = 0; i < LISTENERS_MAX; i++)
        if (s->listener[i].conn == conn)
            memset(&s->listener[i], 0, sizeof s->listener[i]);
    wrk_cache_conn_down(s->cache, conn);
}

/* Sends pieces until the call's credit is used up; the rest goes when the receiver has given more. */
static void send_header(struct wrk_serve *s, struct listener *l)
{
    uint64_t total = s->loaded->header_bytes;
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = KVS_OK;
    while (l->offset < total && st == KVS_OK) {
        uint64_t n = total - l->offset < PIECE_BYTES ? total - l->offset : PIECE_BYTES;
        struct msg_model_info_piece piece = {.offset = l->offset, .total = total, .bytes = s->loaded->header + l->offset, .count = (uint32_t)n};
        kvs_buf_clear(&body);
        st = msg_model_info_piece_encode(&piece, &body);
        if (st == KVS_OK)
            st = net_rpc_item(wrk_worker_rpc(s->w), l->conn, l->stream, body.data, body.len);
        if (st == KVS_OK)
            l->offset += n;
    }
    kvs_buf_fini(&body);
    if (l->offset == total || (st != KVS_OK && !kvs_is_busy(st))) {
        end_call(s, l->conn, l->stream, l->offset == total ? KVS_OK : st, "");
        memset(l, 0, sizeof *l);
    }
}

void wrk_serve_pump(struct wrk_serve *s)
{
    for (uint32_t i = 0; i < LISTENERS_MAX; i++)
        if (s->listener[i].conn != 0 && s->listener[i].method == MSG_MODEL_INFO)
            send_header(s, &s->listener[i]);
    wrk_cache_pump(s->cache);
}

static void fill_load(struct wrk_serve *s, bool draining, struct msg_load *load)
{
    const struct wrk_sched *sched = wrk_worker_sched(s->w);
    struct wrk_sched_stats st = wrk_sched_stats(sched);
    const struct kvc_layout *layout = wrk_sched_layout(sched);
    load->sequence = ++s->report_sequence;
    load->running = st.active;
    load->waiting = st.waiting;
    load->outstanding_tokens = st.outstanding_tokens;
    load->group_count = layout->group_count;
    for (uint32_t g = 0; g < layout->group_count; g++) {
        struct kvc_pool_counts c = wrk_sched_pages(sched, g);
        load->pages[g] = (struct msg_pages){.total = c.total, .free = c.free, .cached = c.cached, .held = c.held, .fenced = c.fenced};
    }
    load->peer_count = wrk_peers_links(wrk_worker_peers(s->w), load->peers, sizeof load->peers / sizeof load->peers[0]);
    for (uint32_t i = 0; i < load->peer_count; i++)
        wrk_worker_link(s->w, &load->peers[i]);
    wrk_speed_tell(wrk_worker_speed(s->w), &load->speed);
    load->prefill_left = s->told = st.prefill_left;
    load->context_tokens = st.context_tokens;
    load->decoding = st.decoding;
    load->chunk_tokens = wrk_sched_chunk_tokens(sched);
    load->draining = draining;
    load->role = wrk_worker_card(s->w)->role;
}

uint64_t wrk_serve_told(const struct wrk_serve *s)
{
    return s->told;
}

void wrk_serve_report(struct wrk_serve *s, bool draining)
{
    bool wanted = false;
    s->told = 0; /* nobody asks, or no memory for it: nothing to set right early */
    for (uint32_t i = 0; i < LISTENERS_MAX; i++)
        wanted = wanted || (s->listener[i].conn != 0 && s->listener[i].method == MSG_LOAD);
    if (!wanted)
        return;
    struct msg_load *load = calloc(1, sizeof *load);
    struct kvs_buf text, body;
    kvs_buf_init(&text, METRICS_MAX);
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    if (load == NULL)
        goto done;
    fill_load(s, draining, load);
    kvs_status st = kvs_metrics_write(wrk_worker_metrics(s->w), &text);
    if (st != KVS_OK) {
        KVS_WARN("metrics left out of a load report", "cause=%s bytes_max=%u", kvs_status_name(st), METRICS_MAX);
        kvs_buf_clear(&text);
    }
    load->metrics = kvs_buf_text(&text);
    load->metrics_bytes = (uint32_t)text.len;
    st = msg_load_encode(load, &body);
    if (st != KVS_OK) {
        KVS_WARN("load report left out", "cause=%s", kvs_status_name(st));
        goto done;
    }
    for (uint32_t i = 0; i < LISTENERS_MAX; i++) {
        struct listener *l = &s->listener[i];
        if (l->conn != 0 && l->method == MSG_LOAD && net_rpc_item(wrk_worker_rpc(s->w), l->conn, l->stream, body.data, body.len) != KVS_OK)
            KVS_DEBUG("load report not sent", "conn=%llu", (unsigned long long)l->conn);
    }
done:
    kvs_buf_fini(&text);
    kvs_buf_fini(&body);
    free(load);
}
