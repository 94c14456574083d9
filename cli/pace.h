/* pace.h - when a child that died is started again: at 0.1 s, then twice as long each time up to 5 s; a life of 10 s starts anew.
 * Pure; the caller gives the time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_PACE_H
#define KVS_CLI_PACE_H

#include <stdint.h>

#define CLI_PACE_FIRST_US 100000u
#define CLI_PACE_MAX_US 5000000u
#define CLI_PACE_SOUND_US 10000000u

struct cli_pace {
    uint64_t delay_us; /* the next pause; 0: the first one */
    uint64_t started_us;
};
void cli_pace_started(struct cli_pace *p, uint64_t now_us);
/* The child ended now: when to start it again. */
uint64_t cli_pace_next_us(struct cli_pace *p, uint64_t now_us);

#endif
