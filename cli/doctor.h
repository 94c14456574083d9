/* doctor.h - what the parts of `kvasir doctor` share: one line a finding, with its remedy.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_DOCTOR_H
#define KVS_CLI_DOCTOR_H

#include <stdbool.h>
#include <stdint.h>

typedef enum cli_verdict { CLI_GOOD, CLI_WARNING, CLI_BAD } cli_verdict;

/* remedy "": none is needed. BAD ones make the exit code 1. */
void cli_doctor_say(cli_verdict v, const char *what, const char *finding, const char *remedy);

/* What a worker would be started with, and the prompt that is asked about. Zeros: the workers' defaults; prompt: all of the context. */
struct cli_doctor_memory {
    uint32_t context, prompt, kv_type, block_tokens, group_layers, chunk_tokens, threads, sequences, reserve_tokens, snapshot_blocks, workers;
    uint64_t kv_memory;
    bool prefix_cache;
};
struct mdl_gguf;
struct mdl_card;
/* What a worker of this model takes, from the file's header: part by part, then the verdict. */
void cli_doctor_memory(const struct cli_doctor_memory *c, const struct mdl_gguf *g, const struct mdl_card *card);

void cli_doctor_cluster(const char *url);                           /* a running router's view of its cluster */
/* etcd://HOST:PORT[,HOST:PORT]; user "": no authentication */
void cli_doctor_etcd(const char *discovery, const char *cluster, const char *user, const char *password);

#endif
