/* pulse.h - is the peer of a control stream still there? The rule of heartbeats, and nothing else: pure, time is an argument.
 * Whoever owns a stream looks at its pulse every NET_PULSE_LOOK_US, and tells it of all that is heard; any bytes count. A look says what is
 * to be done: send a PING (the peer answers, and counts ours as a sign of life, too), suspect the peer, or give it up.
 *
 *   alive --silent for more than 1 s--> suspect --silent for more than 2 s--> lost
 *     ^------------- heard ----------------'
 *
 * Both ends send PINGs twice a second whatever else they say, so silence is never for want of something to say: not heard means hung, cut
 * off, or half-open. (A process that dies is noticed by the end of its stream, at once and without this.) A look comes at most
 * NET_PULSE_LOOK_US late, so a hung or cut-off peer is lost within 2.1 s and a bit: the promise is 3 s.
 * Time that the looking process was not there itself (SIGSTOP, a suspended machine, a blocked loop) says nothing about peers: a look that is
 * late by a second starts all their clocks anew. Before it looks, the owner takes in what has arrived.
 * The daemons' streams (net/rpc.c) and the simulator's (sim/pulse.c) live by this one rule.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_CORE_PULSE_H
#define KVS_NET_CORE_PULSE_H

#include <stdbool.h>
#include <stdint.h>

#define NET_PULSE_LOOK_US 100000u
#define NET_PULSE_PING_US 500000u
#define NET_PULSE_SUSPECT_US 1000000u
#define NET_PULSE_LOST_US 2000000u
#define NET_PULSE_STALL_US 1000000u /* between two looks: we were not there ourselves */

/* One peer, from when its stream is there. */
struct net_pulse {
    uint64_t heard_us, pinged_us;
    bool suspect;
};

typedef struct net_pulse_verdict {
    bool lost;    /* give it up; then nothing else is set */
    bool suspect; /* has just become so */
    bool ping;    /* send one now */
} net_pulse_verdict;

void net_pulse_start(struct net_pulse *p, uint64_t now_us);
/* Something has arrived from it. true: it was suspect, and is so no more. */
bool net_pulse_heard(struct net_pulse *p, uint64_t now_us);
/* Our own absence is not its silence. Who was suspect stays so until it is heard. */
void net_pulse_forgive(struct net_pulse *p, uint64_t now_us);
net_pulse_verdict net_pulse_look(struct net_pulse *p, uint64_t now_us);
/* At every look, before any pulse is looked at; *looked_us is the last one's time (before the first: when it began). true: we were away, forgive everybody. */
bool net_pulse_we_were_away(uint64_t *looked_us, uint64_t now_us);

#endif
