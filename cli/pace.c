/* pace.c - see pace.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/pace.h"

void cli_pace_started(struct cli_pace *p, uint64_t now_us)
{
    p->started_us = now_us;
}

uint64_t cli_pace_next_us(struct cli_pace *p, uint64_t now_us)
{
    uint64_t life = now_us > p->started_us ? now_us - p->started_us : 0;
    if (p->delay_us == 0 || life >= CLI_PACE_SOUND_US)
        p->delay_us = CLI_PACE_FIRST_US;
    uint64_t at = now_us + p->delay_us;
    p->delay_us = p->delay_us * 2 > CLI_PACE_MAX_US ? CLI_PACE_MAX_US : p->delay_us * 2;
    return at;
}
