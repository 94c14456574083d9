/* report.c - see report.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/report.h"

#include <string.h>

static const char *const names[] = {
#define X(name) #name,
    SIM_COUNTERS(X)
#undef X
};

const char *sim_counter_name(uint32_t counter)
{
    return counter < SIM_COUNTER_COUNT ? names[counter] : "?";
}

bool sim_counter_find(const char *name, uint32_t *out)
{
    for (uint32_t i = 0; i < SIM_COUNTER_COUNT; i++)
        if (strcmp(names[i], name) == 0) {
            *out = i;
            return true;
        }
    return false;
}

void sim_report_add(struct sim_report *sum, const struct sim_report *one)
{
    for (uint32_t i = 0; i < SIM_COUNTER_COUNT; i++)
        if (i != SIM_N_slowest_ms)
            sum->n[i] += one->n[i];
        else if (one->n[i] > sum->n[i])
            sum->n[i] = one->n[i];
    sum->trace_hash = sum->trace_hash * 0x9e3779b97f4a7c15u + one->trace_hash;
}
