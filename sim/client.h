/* client.h - the clients: what they ask for, what they do while they wait, and whether what they get is what was promised.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_CLIENT_H
#define KVS_SIM_CLIENT_H

#include "router/core/router.h"
#include "sim/world.h"

#define SIM_PLACES 8u

struct sim_choice {
    int32_t *answer; /* expected */
    uint32_t answer_count, got;
    bool ended;   /* by its last token */
    bool stopped; /* by the client's stop string */
    uint64_t stopped_us;
};

struct sim_request {
    uint64_t id, begun_us, deadline_us;
    int32_t *prompt;
    uint32_t prompt_count, max_tokens, tenant;
    struct sim_choice choice[RTR_CHOICES_MAX];
    uint32_t choices;
    bool ignore_eos, over, left, slow, poison;
    uint32_t deaths; /* of those that took a poisoned one */
    bool foreign; /* the class in which it was placed */
    uint64_t paused_us; /* 0: reads */
    uint32_t attempt;
    uint32_t router, router_life; /* whom it was asked of */
    uint32_t decode_node;         /* where the router has placed it last */
    char prefill_id[MSG_ID_MAX]; /* "": to be prefilled there */
    struct {
        uint32_t decode_node;
        char prefill_id[MSG_ID_MAX];
    } placed[SIM_PLACES]; /* ring of these and the ones before: an earlier attempt may still be on its way */
    uint32_t places;
    uint32_t pause_at, stop_at, stop_choice; /* 0: never; after so many tokens */
};

struct sim_client {
    struct sim_request **request; /* all of the run, by id - 1 */
    uint32_t count, cap, open;
    uint32_t first_open; /* all before are over */
};

void sim_client_create(struct sim *s);
void sim_client_free(struct sim *s);
void sim_client_ask(struct sim *s, const struct sim_command *c);
/* From the router. */
void sim_client_placed(struct sim *s, uint64_t id, uint32_t attempt, uint32_t decode_node, const struct msg_generate *m);
bool sim_client_poisons(struct sim *s, uint64_t id); /* a worker has taken it: must it die of that? */
void sim_client_cut(struct sim *s, uint32_t router); /* that router is dead, and with it the connections of its clients */
uint64_t sim_client_latest_us(const struct sim *s, const struct sim_request *r); /* when it must be over */
void sim_client_prefilled(struct sim *s, uint64_t id, uint32_t decode_node, uint32_t prefill_node); /* a worker calls PREFILL */
struct sim_conn;
void sim_client_entry(struct sim *s, const struct sim_conn *conn, const struct msg_token *t); /* as it came, before the core saw it */
void sim_client_token(struct sim *s, uint64_t id, uint32_t choice, const struct msg_token *t);
void sim_client_over(struct sim *s, uint64_t id, kvs_status st, const char *text, bool rejected);

/* router.c */
void sim_router_create(struct sim *s, uint32_t node);
void sim_router_destroy(struct sim *s, uint32_t node);
void sim_router_feed(struct sim *s, uint32_t node, const struct rtr_event *ev);
uint64_t sim_router_conn(struct sim *s, uint32_t node, const char *id, uint64_t epoch); /* of a worker that is in use; 0: none */
struct rtr *sim_router_core(struct sim *s, uint32_t node);

#endif
