/* config.h - the worker daemons' one table of settings (flags, environment, file, --help), and how each is checked.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_EDGE_CONFIG_H
#define KVS_WORKER_EDGE_CONFIG_H

#include "proto/msg.h"
#include "sys/config.h"

struct wrk_config {
    char name[MSG_ID_MAX];       /* --name; default role-host-pid */
    char cluster[MSG_ID_MAX];
    char model[512];             /* GGUF file */
    char model_name[128];        /* what clients ask for; default: the file's stem in lower case */
    char control[MSG_URL_MAX];   /* where peers dial us */
    char listen[128];            /* HTTP: metrics, health */
    char discovery[MSG_URL_MAX]; /* the router's control URL, or etcd://HOST:PORT[,HOST:PORT] */
    char advertise[128];         /* host that others dial; "": as in control and listen */
    char auth_file[512];         /* the shared key; "": that of the environment, or none */
    char etcd_user[256], etcd_password[256];
    char log_level[16];
    uint32_t threads;
    uint32_t kv_type;            /* kvc_type */
    uint64_t kv_memory;          /* bytes; 0: a quarter of free memory, at most 2 GiB */
    uint32_t block_tokens, group_layers, chunk_tokens, context;
    uint32_t transport;          /* enum wrk_transport */
    uint32_t reserve_tokens;
    uint32_t sequences;          /* most sequences at once */
    uint32_t queue;              /* most calls that wait */
    uint32_t window;             /* KV messages in flight per peer */
    uint64_t drain_us;
    uint64_t lease_ttl_us;
    bool prefix_cache;           /* keep full blocks for later requests */
    uint32_t snapshot_blocks;    /* state groups: blocks between two snapshots */
    uint64_t kv_stall_us;        /* a slow transfer is given up */
    uint64_t kv_ttl_us;          /* unused cached KV is dropped after that long */
};

extern const struct kvs_config_row wrk_config_rows[];
extern const size_t wrk_config_row_count;

/* Loads, fills in defaults that depend on the machine (name, kv_memory), and refuses what cannot work. */
KVS_MUST_CHECK kvs_status wrk_config_load(int argc, char **argv, msg_role role, struct wrk_config *out, bool *help_out, struct kvs_error *err);

#endif
