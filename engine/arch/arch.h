/* arch.h - what an architecture file provides: which tensors it wants and one forward pass composed of ops.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_ARCH_ARCH_H
#define KVS_ENGINE_ARCH_ARCH_H

#include "engine/ctx.h"
#include "engine/model.h"
#include "engine/team.h"

struct eng_arch {
    const char *name;
    /* Refuses what the file asks for and this build has not (experts, ...), before any tensor is read. */
    kvs_status (*check)(const struct mdl_gguf *g, const struct mdl_card *card, struct kvs_error *err);
    /* Takes one tensor of the file; a name it does not know is an error. */
    kvs_status (*tensor)(struct eng_model *m, const struct mdl_tensor *t, struct kvs_error *err);
    /* After the last tensor: everything there? Sets m->head. */
    kvs_status (*complete)(struct eng_model *m, struct kvs_error *err);
    /* One member's share of a step; runs on all members at once. */
    void (*forward)(struct eng_ctx *c, struct eng_member *self);
};

extern const struct eng_arch eng_arch_llama;

#endif
