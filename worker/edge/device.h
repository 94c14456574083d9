/* device.h - the device thread: runs one step at a time through the engine, samples, and reports to the loop.
 * The loop submits; layer progress and the finished step come back through config.wake (any thread) and are read with the two polls.
 * A step's memory belongs to the device between submit and wrk_device_take_done. Rows to ship are copied into the ship rows
 * (one per prefill call slot) before the step is reported done.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_EDGE_DEVICE_H
#define KVS_WORKER_EDGE_DEVICE_H

#include "engine/engine.h"
#include "worker/core/sched.h"

struct wrk_device;

struct wrk_device_config {
    const struct eng_model *model;
    const struct kvc_layout *layout;
    const struct eng_kv *kv;
    struct eng_ctx_options options;
    uint32_t vocab;
    uint32_t ship_rows;      /* call slots whose logits rows are kept; 0: none */
    void (*wake)(void *user); /* device thread: something is to be read */
    void *wake_user;
};

KVS_MUST_CHECK kvs_status wrk_device_create(const struct wrk_device_config *c, struct wrk_device **out, struct kvs_error *err);
void wrk_device_destroy(struct wrk_device *d); /* stops the step in flight at its next layer, joins the thread */

void wrk_device_submit(struct wrk_device *d, const struct wrk_step *step); /* none may be in flight */
void wrk_device_stop_step(struct wrk_device *d, bool stop);                /* read by the layer callback */
/* Layers complete of the step in flight since the last call; false: nothing new. */
bool wrk_device_take_layers(struct wrk_device *d, uint64_t *step_out, uint32_t *layers_out);
/* The finished step, once. results: one per entry, valid until the next submit. */
bool wrk_device_take_done(struct wrk_device *d, uint64_t *step_out, kvs_status *status_out, const struct wrk_result **results_out);
double wrk_device_step_s(const struct wrk_device *d); /* what the step taken last took, seconds of the clock */
const float *wrk_device_ship_row(const struct wrk_device *d, uint32_t slot);

/* Sampling from a row that came over the wire; loop thread, scratch of its own. */
KVS_MUST_CHECK kvs_status wrk_device_sample(struct wrk_device *d, const float *row, const struct msg_sampling *p, uint32_t choice, uint32_t position,
                                            struct wrk_result *out);

#endif
