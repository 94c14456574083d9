/* recent.c - see recent.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/recent.h"

#include <inttypes.h>
#include <string.h>

void rtr_recent_add(struct rtr_recent *r, const struct rtr_placed_row *row)
{
    r->row[r->next] = *row;
    r->next = (r->next + 1) % RTR_RECENT_MAX;
    r->count += r->count < RTR_RECENT_MAX;
}

static void option_json(const struct rtr_option *o, struct kvs_json *j)
{
    kvs_json_object(j);
    kvs_json_field_string(j, "mode", o->prefill[0] ? "remote" : "local");
    kvs_json_field_string(j, "decode", o->decode);
    kvs_json_field_string(j, "prefill", o->prefill[0] ? o->prefill : o->decode);
    kvs_json_field_string(j, "fetch", o->fetch);
    kvs_json_field_f64(j, "cached", o->cached_tokens);
    kvs_json_field_f64(j, "queue_s", o->cost.queue_s);
    kvs_json_field_f64(j, "fetch_s", o->cost.fetch_s);
    kvs_json_field_f64(j, "prefill_s", o->cost.prefill_s);
    kvs_json_field_f64(j, "exposed_s", o->cost.exposed_s);
    kvs_json_field_f64(j, "ttft_s", o->cost.ttft_s);
    kvs_json_field_f64(j, "step_s", o->cost.step_s);
    kvs_json_field_bool(j, "suspect", o->suspect);
    kvs_json_field_bool(j, "slow", o->slow);
    kvs_json_field_bool(j, "unwanted", o->unwanted);
    kvs_json_object_end(j);
}

static void row_json(const struct rtr_placed_row *row, uint64_t now_us, struct kvs_json *j)
{
    char hex[24];
    kvs_format(hex, sizeof(hex), "%016" PRIx64, row->id);
    kvs_json_object(j);
    kvs_json_field_string(j, "request", hex);
    kvs_json_field_f64(j, "age_s", now_us > row->at_us ? (double)(now_us - row->at_us) * 1e-6 : 0);
    kvs_json_field_f64(j, "prompt_tokens", row->prompt_tokens);
    kvs_json_field_string(j, "mode", row->mode == MSG_PLACE_REMOTE ? "remote" : "local");
    kvs_json_field_f64(j, "cached", row->cached_tokens);
    kvs_json_field_f64(j, "predicted_s", row->option[0].cost.ttft_s);
    kvs_json_field_f64(j, "measured_s", row->measured_s);
    kvs_json_key(j, "candidates");
    kvs_json_array(j);
    for (uint32_t i = 0; i < row->option_count; i++)
        option_json(&row->option[i], j);
    kvs_json_array_end(j);
    kvs_json_object_end(j);
}

void rtr_recent_json(const struct rtr_recent *r, uint64_t now_us, struct kvs_json *j)
{
    kvs_json_array(j);
    for (uint32_t i = 1; i <= r->count; i++)
        row_json(&r->row[(r->next + RTR_RECENT_MAX - i) % RTR_RECENT_MAX], now_us, j);
    kvs_json_array_end(j);
}

void rtr_recent_text(const struct rtr_placed_row *row, char *out, size_t cap)
{
    const struct rtr_option *o = &row->option[0];
    const struct rtr_cost *c = &o->cost;
    if (!row->option_count) {
        kvs_format(out, cap, "%s", "");
        return;
    }
    kvs_format(out, cap, " predicted_ms=%.1f queue_ms=%.1f fetch_ms=%.1f prefill_ms=%.1f exposed_ms=%.1f step_ms=%.1f predicted_cached=%u fetch=%s first_ms=%.1f",
               c->ttft_s * 1e3, c->queue_s * 1e3, c->fetch_s * 1e3, c->prefill_s * 1e3, c->exposed_s * 1e3, c->step_s * 1e3, o->cached_tokens,
               o->fetch[0] ? o->fetch : "-", row->measured_s * 1e3);
}
