/* pulse.c - see pulse.h. Clocks are monotonic, but what arrives is stamped by another call of the clock than the look's: a moment that lies
 * behind the last one is no silence.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/core/pulse.h"

static uint64_t since(uint64_t then_us, uint64_t now_us)
{
    return now_us > then_us ? now_us - then_us : 0;
}

void net_pulse_start(struct net_pulse *p, uint64_t now_us)
{
    *p = (struct net_pulse){.heard_us = now_us};
}

bool net_pulse_heard(struct net_pulse *p, uint64_t now_us)
{
    bool was_suspect = p->suspect;
    p->heard_us = now_us > p->heard_us ? now_us : p->heard_us;
    p->suspect = false;
    return was_suspect;
}

void net_pulse_forgive(struct net_pulse *p, uint64_t now_us)
{
    p->heard_us = now_us > p->heard_us ? now_us : p->heard_us;
}

net_pulse_verdict net_pulse_look(struct net_pulse *p, uint64_t now_us)
{
    uint64_t silent_us = since(p->heard_us, now_us);
    net_pulse_verdict v = {.lost = silent_us > NET_PULSE_LOST_US};
    if (v.lost) {
        return v;
    }
    v.ping = p->pinged_us == 0 || since(p->pinged_us, now_us) >= NET_PULSE_PING_US;
    p->pinged_us = v.ping ? now_us : p->pinged_us;
    v.suspect = !p->suspect && silent_us > NET_PULSE_SUSPECT_US;
    p->suspect = p->suspect || v.suspect;
    return v;
}

bool net_pulse_we_were_away(uint64_t *looked_us, uint64_t now_us)
{
    bool away = since(*looked_us, now_us) > NET_PULSE_STALL_US;
    *looked_us = now_us;
    return away;
}
