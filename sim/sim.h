/* sim.h - one run of the simulator: a scenario and a seed in, a report out.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_SIM_H
#define KVS_SIM_SIM_H

#include "sim/report.h"
#include "sim/scenario.h"

/* false: a promise was broken, or an expectation of the run was not met; why_out says what (its last notes went to stdout). */
bool sim_run(const struct sim_scenario *scenario, uint64_t seed, bool trace, struct sim_report *out, char *why_out, size_t why_cap);
/* The expectations over all runs. */
bool sim_totals_met(const struct sim_scenario *scenario, const struct sim_report *sum, char *why_out, size_t why_cap);
/* What a handler of SIGABRT may call: the notes of the run in progress (an assertion of a core has failed). */
void sim_print_current(void);
uint64_t sim_current_seed(void);
const struct sim_report *sim_current_report(void); /* so far; never NULL */

#endif
