/* config.c - see config.h. A value that cannot work is refused here, with its remedy, before a byte of the model is read.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/edge/config.h"

#include "kvcache/layout.h"
#include "model/parts.h"
#include "sys/thread.h"
#include "worker/core/memory_rows.h"
#include <ctype.h>
#include <string.h>
#include <unistd.h>

#define ROW(field) offsetof(struct wrk_config, field)
#define TEXT(field) sizeof(((struct wrk_config *)0)->field)

const struct kvs_config_row wrk_config_rows[] = {
    {"worker.name", "name", KVS_CFG_NAME, NULL, 0, TEXT(name), NULL, "identity in the cluster (default role-host-pid)", ROW(name)},
    {"cluster.name", "cluster", KVS_CFG_NAME, "default", 0, TEXT(cluster), NULL, "cluster to belong to", ROW(cluster)},
    {"model.file", "model", KVS_CFG_STRING, NULL, 0, TEXT(model), NULL, "GGUF file to serve", ROW(model)},
    {"model.name", "model-name", KVS_CFG_STRING, NULL, 0, TEXT(model_name), NULL, "name that clients ask for (default: the file's stem in lower case)", ROW(model_name)},
    {"worker.control", "control", KVS_CFG_STRING, "tcp://127.0.0.1:0", 0, TEXT(control), NULL, "where peers dial this worker (ipc:// or tcp://)", ROW(control)},
    {"worker.listen", "listen", KVS_CFG_STRING, "127.0.0.1:0", 0, TEXT(listen), NULL, "HTTP for /metrics and /health", ROW(listen)},
    {"cluster.discovery", "discovery", KVS_CFG_STRING, NULL, 0, TEXT(discovery), NULL, "control URL of the router, or etcd://HOST:PORT[,HOST:PORT]", ROW(discovery)},
    {"worker.advertise", "advertise", KVS_CFG_STRING, NULL, 0, TEXT(advertise), NULL, "host or address at which others reach this worker", ROW(advertise)},
    {"cluster.auth_file", "auth-file", KVS_CFG_STRING, NULL, 0, TEXT(auth_file), NULL, "file with the cluster's shared key (or KVASIR_AUTH)", ROW(auth_file)},
    {"etcd.user", NULL, KVS_CFG_STRING, NULL, 0, TEXT(etcd_user), NULL, "user of an etcd with authentication", ROW(etcd_user)},
    {"etcd.password", NULL, KVS_CFG_STRING, NULL, 0, TEXT(etcd_password), NULL, "and that one's password", ROW(etcd_password)},
    {"log.level", "log-level", KVS_CFG_STRING, "info", 0, TEXT(log_level), NULL, "error, warn, info, debug or trace", ROW(log_level)},
    {"engine.threads", "threads", KVS_CFG_U32, "1", 1, 256, NULL, "threads that compute", ROW(threads)},
    WRK_MEMORY_ROWS(ROW),
    {"kv.transport", "transport", KVS_CFG_ENUM, "auto", 0, 0, "auto|shm|tcp", "how KV pages travel between workers", ROW(transport)},
    {"sched.queue", "queue", KVS_CFG_U32, "1024", 1, 65536, NULL, "calls that may wait for pages", ROW(queue)},
    {"kv.window", "window", KVS_CFG_U32, "8", 4, 16, NULL, "KV messages in flight to one peer", ROW(window)},
    {"kv.ttl", NULL, KVS_CFG_SECONDS, "259200", 1, 31536000, NULL, "cached KV that nobody used for so long is dropped (72 h)", ROW(kv_ttl_us)},
    {"kv.stall", NULL, KVS_CFG_SECONDS, "5", 0.001, 3600, NULL, "a transfer has this long after its source is done, and its bytes at 4 MB/s; then computing takes over", ROW(kv_stall_us)},
    {"worker.drain", "drain", KVS_CFG_SECONDS, "30", 0, 86400, NULL, "seconds that what runs here has to finish after SIGTERM", ROW(drain_us)},
    {"cluster.lease_ttl", NULL, KVS_CFG_SECONDS, "10", 1, 3600, NULL, "lease of the registration", ROW(lease_ttl_us)},
};
const size_t wrk_config_row_count = sizeof wrk_config_rows / sizeof wrk_config_rows[0];

static void default_name(msg_role role, char *out, size_t cap)
{
    char host[40] = "host";
    (void)gethostname(host, sizeof host - 1);
    kvs_format(out, cap, "%s-%s-%ld", msg_role_name(role), host, (long)getpid());
}

/* "/models/Some.Model-Q4.gguf" -> "some.model-q4"; of a split model, too: "/models/Some.Model-Q4-00001-of-00003.gguf" */
static void default_model_name(const char *file, char *out, size_t cap)
{
    const char *base = strrchr(file, '/');
    base = base != NULL ? base + 1 : file;
    size_t n = mdl_stem(base);
    if (n >= cap)
        n = cap - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = (char)tolower((unsigned char)base[i]);
    out[n] = 0;
}

kvs_status wrk_config_load(int argc, char **argv, msg_role role, struct wrk_config *out, bool *help_out, struct kvs_error *err)
{
    memset(out, 0, sizeof *out);
    *help_out = false;
    kvs_status st = kvs_config_load(wrk_config_rows, wrk_config_row_count, out, argc, argv, NULL, help_out, err);
    if (st != KVS_OK || *help_out)
        return st;
    if (out->model[0] == 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "no model given: say --model FILE (a GGUF file)");
    if (out->discovery[0] == 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "no cluster given: say --discovery URL (etcd://HOST:PORT, or the router's control URL such as tcp://127.0.0.1:8081)");
    if ((out->block_tokens & (out->block_tokens - 1)) != 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "--block-tokens %u is not a power of two: use 16, 32, 64 or 128", out->block_tokens);
    if (out->name[0] == 0)
        default_name(role, out->name, sizeof out->name);
    if (out->model_name[0] == 0)
        default_model_name(out->model, out->model_name, sizeof out->model_name);
    if (out->kv_memory == 0) {
        out->kv_memory = kvs_memory_available() / 4;
        if (out->kv_memory > (uint64_t)2 << 30)
            out->kv_memory = (uint64_t)2 << 30;
    }
    /* pages get memory when they are first used: too much would be noticed late, by the kernel's axe */
    uint64_t total = kvs_memory_total();
    if (total && out->kv_memory > total)
        return kvs_fail(err, KVS_SELF_CONFIG, "--kv-memory of %.1f GB is more than the %.1f GB of this machine: give less", (double)out->kv_memory / 1e9,
                        (double)total / 1e9);
    return KVS_OK;
}
