/* etcd_server.h - real etcd servers for tests: one to three nodes on ports that the kernel chose and keeps for them, data in a fresh folder.
 * A test without the program skips. Servers die with the test (PR_SET_PDEATHSIG) and are ended by their pids.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TEST_ETCD_SERVER_H
#define KVS_TEST_ETCD_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define ETCD_NODES_MAX 3

struct etcd_servers {
    int nodes;
    char dir[64];
    uint16_t port[ETCD_NODES_MAX], peer_port[ETCD_NODES_MAX];
    int held[2 * ETCD_NODES_MAX]; /* sockets that keep the ports ours */
    pid_t pid[ETCD_NODES_MAX];
    char url[160]; /* etcd://127.0.0.1:PORT,... */
};

bool etcd_is_there(void);
void etcd_start(struct etcd_servers *s, int nodes); /* and waits until it serves */
void etcd_stop(struct etcd_servers *s);             /* and removes its data */
void etcd_kill(struct etcd_servers *s, int node);
void etcd_signal(struct etcd_servers *s, int node, int signal);
void etcd_run(struct etcd_servers *s, int node);  /* starts it (again) with the data that is there; does not wait */
void etcd_wipe(struct etcd_servers *s, int node); /* of a node that is down */
void etcd_wait(struct etcd_servers *s);           /* until a key can be put through every running node */
int etcd_leader(struct etcd_servers *s);          /* its node, -1: none now */
/* A POST of body to a node; true: HTTP 200, answer in out. Blocks, at most limit_ms. */
bool etcd_post(struct etcd_servers *s, int node, const char *path, const char *body, char *out, size_t cap,
               long limit_ms);
long etcd_revision(struct etcd_servers *s);
void etcd_compact(struct etcd_servers *s, long revision);

#endif
