/* misfits.c - see misfits.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/misfits.h"

#include <string.h>

static void forget(struct rtr_misfits *m, uint32_t i)
{
    m->count--;
    memmove(&m->row[i], &m->row[i + 1], (m->count - i) * sizeof(m->row[0]));
}

static void drop(struct rtr_misfits *m, const char *id, uint64_t now_us)
{
    for (uint32_t i = m->count; i-- > 0;)
        if (strcmp(m->row[i].id, id) == 0 || now_us - m->row[i].at_us >= RTR_MISFITS_KEEP_US)
            forget(m, i);
}

/* One that is about to end is no measure for others. */
static bool is_misfit(const struct rtr_misfits *m, const struct msg_card *card)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (m->row[i].epoch == card->epoch && strcmp(m->row[i].id, card->id) == 0)
            return true;
    return false;
}

void rtr_misfits_look(struct rtr_misfits *m, const struct msg_card *members, uint32_t member_count, const struct msg_card *card, uint64_t now_us)
{
    struct rtr_misfit row = {.epoch = card->epoch, .at_us = now_us};
    drop(m, card->id, now_us);
    for (uint32_t i = 0; i < member_count; i++) {
        const struct msg_card *o = &members[i];
        if (strcmp(o->id, card->id) == 0 || strcmp(o->model, card->model) != 0 || is_misfit(m, o) || !cls_cards_differ(card, o, &row.differs))
            continue;
        if (m->count == RTR_MISFITS_MAX)
            forget(m, 0);
        kvs_format(row.id, sizeof(row.id), "%s", card->id);
        kvs_format(row.other, sizeof(row.other), "%s", o->id);
        kvs_format(row.model, sizeof(row.model), "%s", card->model);
        m->row[m->count++] = row;
        return;
    }
}

void rtr_misfits_json(const struct rtr_misfits *m, uint64_t now_us, struct kvs_json *j)
{
    kvs_json_array(j);
    for (uint32_t i = m->count; i-- > 0;) {
        const struct rtr_misfit *r = &m->row[i];
        uint64_t age_us = now_us > r->at_us ? now_us - r->at_us : 0;
        if (age_us >= RTR_MISFITS_KEEP_US)
            continue;
        kvs_json_object(j);
        kvs_json_field_string(j, "id", r->id);
        kvs_json_field_string(j, "model", r->model);
        kvs_json_field_string(j, "field", r->differs.field);
        kvs_json_field_string(j, "value", r->differs.a);
        kvs_json_field_string(j, "other", r->other);
        kvs_json_field_string(j, "other_value", r->differs.b);
        kvs_json_field_f64(j, "age_s", (double)age_us * 1e-6);
        kvs_json_object_end(j);
    }
    kvs_json_array_end(j);
}
