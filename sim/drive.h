/* drive.h - a scenario file over a range of seeds, with what happened on stdout: what `kvasir-sim` and `kvasir sim` share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_DRIVE_H
#define KVS_SIM_DRIVE_H

#include "base/error.h"

#define SIM_DRIVE_FAILED 1
#define SIM_DRIVE_USAGE 2

struct sim_drive {
    const char *program; /* as the replay line names it */
    const char *scenario;
    uint64_t seed, seeds;
    bool trace, quiet;
};

/* 0: every run kept every promise and met its expectations. FAILED: one did not: its trace, the cause, and the command that replays it
 * were printed. USAGE: the scenario cannot be read, err says why. Takes SIGABRT and SIGSEGV over, to print the trace of a failed assertion. */
int sim_drive(const struct sim_drive *d, struct kvs_error *err);

#endif
