/* env.h - what stands for the loop and the streams of one simulated process, towards code that was written for the real ones (seam.h).
 * A sim_env is given to it as its struct kvs_loop and its struct net_rpc. Timers belong to the process: they stop and die with it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_ENV_H
#define KVS_SIM_ENV_H

#include "sim/world.h"

struct kvs_loop;
struct kvs_timer;
struct net_rpc;

struct sim_env {
    struct sim *s;
    uint32_t node, life;
};

static inline struct kvs_loop *sim_env_loop(struct sim_env *e)
{
    return (struct kvs_loop *)e;
}

static inline struct net_rpc *sim_env_rpc(struct sim_env *e)
{
    return (struct net_rpc *)e;
}

void sim_env_begin(struct sim *s); /* whose clock and random numbers they are from now on */
void sim_env_end(struct sim *s);

#endif
