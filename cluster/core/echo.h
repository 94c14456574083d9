/* echo.h - does a watch still say what happens? A rule, and nothing else: pure, time is an argument.
 * A watch that says nothing may be well: nothing happens under its prefix. Or it is dead without anybody knowing. The store's revision, which
 * every answer of a call carries, tells that something has happened somewhere; only a change under the prefix itself is owed by the watch.
 *
 *   silent for half a TTL, and the store has moved on --> ASK: make a change under the prefix (put the own card again)
 *   a change under the prefix is known of by a call   --> owed
 *   owed, and not a word for a whole TTL              --> DEAD: begin it anew, and read all
 *
 * So a dead watch is found within some two TTLs of the first change that it keeps to itself. A store that rests costs nothing; one that is busy
 * with other keys costs one put in half a TTL for all watchers together, since what one of them puts is said to all.
 * A look comes with the answer of a call, never by a timer alone: then the store is there, and so were we. A watch that lags but goes on
 * speaking is not dead.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLUSTER_CORE_ECHO_H
#define KVS_CLUSTER_CORE_ECHO_H

#include <stdint.h>

struct cls_echo {
    int64_t told;      /* all up to this revision */
    uint64_t heard_us; /* its last word */
    int64_t owed;      /* the first revision that it has yet to tell; 0: none is known */
    uint64_t owed_us;  /* since when that is known */
};

typedef enum cls_echo_verdict {
    CLS_ECHO_FINE,
    CLS_ECHO_ASK,
    CLS_ECHO_DEAD,
} cls_echo_verdict;

/* A watch begins behind that revision. */
void cls_echo_start(struct cls_echo *e, int64_t revision, uint64_t now_us);
/* A line has come; its last event's revision, 0: it has none. */
void cls_echo_heard(struct cls_echo *e, int64_t revision, uint64_t now_us);
/* A call has told that something under the prefix was changed at that revision. */
void cls_echo_owed(struct cls_echo *e, int64_t revision, uint64_t now_us);
/* A call has been answered when the store was at that revision (0: not told). */
cls_echo_verdict cls_echo_look(const struct cls_echo *e, int64_t revision, uint64_t now_us, uint64_t ttl_us);

#endif
