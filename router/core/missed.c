/* missed.c - decode workers that were lost and may come back, or be started again: until when who asks for their model may hope.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/router_impl.h"

#include <string.h>

/* How long a worker that crashed is waited for: it may be started again, perhaps by somebody who said how long that takes. */
uint64_t rtr_restart_us(const struct rtr *r)
{
    bool told = r->config.orphan_us && r->config.restart_us > r->config.orphan_us;
    return told ? r->config.restart_us : r->config.orphan_us;
}

/* A decode worker of that model was lost a moment ago: until when it may be waited for. */
uint64_t rtr_missed_until(const struct rtr *r, uint32_t model)
{
    uint64_t until = 0;
    for (uint32_t i = 0; i < RTR_MISSED_MAX; i++)
        if (r->missed[i].model == model && r->missed[i].until_us > r->now_us && r->missed[i].until_us > until)
            until = r->missed[i].until_us;
    return until;
}

/* A decode worker was lost, and not by its own will. */
void rtr_missed_add(struct rtr *r, const struct rtr_worker *w)
{
    struct rtr_missed *m = &r->missed[r->missed_next++ % RTR_MISSED_MAX];
    /* nobody starts one again that is silent */
    *m = (struct rtr_missed){.model = w->model, .until_us = r->now_us + (w->suspect && !w->crashed ? r->config.orphan_us : rtr_restart_us(r))};
    memcpy(m->id, w->id, sizeof(m->id));
}

/* It is back, or somebody is in its place: of those that are missed the first one of that name, else of that model, is missed no more. */
void rtr_missed_back(struct rtr *r, const struct rtr_worker *w)
{
    struct rtr_missed *other = NULL;
    for (uint32_t i = 0; i < RTR_MISSED_MAX; i++) {
        struct rtr_missed *m = &r->missed[i];
        if (m->model != w->model || m->until_us <= r->now_us)
            continue;
        if (strcmp(m->id, w->id) == 0) {
            m->until_us = 0;
            return;
        }
        other = other && other->until_us <= m->until_us ? other : m;
    }
    if (other)
        other->until_us = 0;
}
