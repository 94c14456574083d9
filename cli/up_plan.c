/* up_plan.c - see up_plan.h. Flags that were not given are not passed on: the daemon's own default holds then.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/up_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define RESTART_WAIT "180" /* as long as a start may take: a large model is read from disk and packed */
#define AT(field) offsetof(struct cli_up_config, field)
const struct kvs_config_row cli_up_rows[] = {
    {"up.model", "model", KVS_CFG_STRING, "smollm2", 0, CLI_PATH_MAX, NULL,
     "GGUF file, or the name smollm2 (fetched when absent)", AT(model)},
    {"up.model_name", "model-name", KVS_CFG_STRING, "", 0, 128, NULL,
     "name that requests use; default the file's stem in lower case", AT(model_name)},
    {"up.listen", "listen", KVS_CFG_STRING, "127.0.0.1:8080", 0, 128, NULL,
     "HOST:PORT of the API; port 0: any free one", AT(listen)},
    {"up.control", "control", KVS_CFG_STRING, "", 0, 256, NULL,
     "URL of the router's control stream; default a socket in the run directory", AT(control)},
    {"up.prefill", "prefill", KVS_CFG_U32, "1", 0, CLI_UP_WORKERS_MAX, NULL, "prefill workers", AT(prefill)},
    {"up.decode", "decode", KVS_CFG_U32, "1", 1, CLI_UP_WORKERS_MAX, NULL, "decode workers", AT(decode)},
    {"up.threads", "threads", KVS_CFG_U32, "0", 0, 1024, NULL,
     "threads that compute, per worker; 0: the processors shared out", AT(threads)},
    {"up.run_dir", "run-dir", KVS_CFG_STRING, "", 0, CLI_PATH_MAX, NULL,
     "folder of pid files, logs and sockets; default a fresh one", AT(run_dir)},
    {"up.transport", "transport", KVS_CFG_ENUM, "auto", 0, 0, "auto|shm|tcp", "how KV pages travel", AT(transport)},
    {"up.kv_type", "kv-type", KVS_CFG_ENUM, "f16", 0, 0, "f32|f16|q8_0", "type of the KV cache", AT(kv_type)},
    {"up.chunk_tokens", "chunk-tokens", KVS_CFG_U32, "0", 0, 8192, NULL,
     "prompt tokens in one step; 0: the worker's default", AT(chunk_tokens)},
    {"up.block_tokens", "block-tokens", KVS_CFG_U32, "0", 0, 512, NULL,
     "tokens of a KV block, a power of two; 0: the worker's default", AT(block_tokens)},
    {"up.group_layers", "group-layers", KVS_CFG_U32, "0", 0, 512, NULL, "layers of a KV group; 0: chosen by page size",
     AT(group_layers)},
    {"up.context", "context", KVS_CFG_U32, "0", 0, 16777216, NULL,
     "tokens a sequence may have; 0: the file's context_length", AT(context)},
    {"up.kv_memory", "kv-memory", KVS_CFG_STRING, "", 0, 32, NULL,
     "KV memory per worker (512M, 2G); default a quarter of what is free, at most 2G", AT(kv_memory)},
    {"up.prefix_cache", "prefix-cache", KVS_CFG_BOOL, "true", 0, 0, NULL,
     "workers keep the KV of prompts and answers for later requests", AT(prefix_cache)},
    {"up.placement", "placement", KVS_CFG_ENUM, "auto", 0, 0, "auto|local|remote", "where prompts are prefilled",
     AT(placement)},
    {"up.local_threshold", "local-threshold", KVS_CFG_U32, "0", 0, 16777216, NULL,
     "prompts up to so many tokens stay on the decode worker, longer ones travel; 0: by the cost model",
     AT(local_threshold)},
    {"up.deadline", "deadline", KVS_CFG_SECONDS, "600", 1, 86400, NULL, "seconds a request may take", AT(deadline_us)},
    {"up.discovery", "discovery", KVS_CFG_STRING, "embedded", 0, 256, NULL,
     "embedded: the router keeps the registry (its control URL says the same); or etcd://HOST:PORT[,HOST:PORT]", AT(discovery)},
    {"up.etcd", "etcd", KVS_CFG_BOOL, "false", 0, 0, NULL, "start an etcd of this cluster's own and use it", AT(etcd)},
    {"up.cluster", "cluster", KVS_CFG_NAME, "default", 0, 64, NULL, "name of the cluster", AT(cluster)},
    {"up.auth_file", "auth-file", KVS_CFG_STRING, "", 0, CLI_PATH_MAX, NULL,
     "file with the cluster's shared key (or KVASIR_AUTH)", AT(auth_file)},
    {"up.no_restart", "no-restart", KVS_CFG_BOOL, "false", 0, 0, NULL, "leave a daemon that died where it is",
     AT(no_restart)},
    {"up.log_level", "log-level", KVS_CFG_STRING, "info", 0, 16, NULL, "error, warn, info, debug or trace",
     AT(log_level)},
};
const size_t cli_up_row_count = sizeof cli_up_rows / sizeof cli_up_rows[0];

static const char *const transports[] = {"auto", "shm", "tcp"};
static const char *const kv_types[] = {"f32", "f16", "q8_0"};
static const char *const placements[] = {"auto", "local", "remote"};

/* Appends one argument; a daemon that has no room left gets argc > max, seen by the caller at the end. */
static void arg(struct cli_daemon *d, const char *text)
{
    size_t n = strlen(text) + 1;
    if (d->argc >= CLI_UP_ARGS_MAX || n > sizeof d->text - d->text_used) {
        d->argc = CLI_UP_ARGS_MAX + 1;
        return;
    }
    memcpy(d->text + d->text_used, text, n);
    d->argv[d->argc++] = d->text + d->text_used;
    d->text_used += n;
}

static void flag(struct cli_daemon *d, const char *name, const char *value)
{
    arg(d, name);
    arg(d, value);
}

static void flag_u32(struct cli_daemon *d, const char *name, uint32_t value)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%" PRIu32, value);
    if (value)
        flag(d, name, text);
}

/* --discovery names the router's own control URL: embedded, and --control in one. */
static bool is_control_url(const char *text)
{
    return strncmp(text, "tcp://", 6) == 0 || strncmp(text, "ipc://", 6) == 0;
}

static void control_url(const struct cli_up_config *c, const struct cli_up_paths *p, char *out, size_t cap)
{
    if (is_control_url(c->discovery))
        (void)kvs_format(out, cap, "%s", c->discovery);
    else if (c->control[0])
        (void)kvs_format(out, cap, "%s", c->control);
    else
        (void)kvs_format(out, cap, "ipc://%s/router.sock", p->socket_dir);
}

/* What the daemons get as --discovery; "" for the router that keeps the registry itself. */
static void discovery_url(const struct cli_up_config *c, const struct cli_up_paths *p, char *out, size_t cap)
{
    if (c->etcd)
        (void)kvs_format(out, cap, "etcd://%s", p->etcd_client);
    else
        (void)kvs_format(out, cap, "%s", strncmp(c->discovery, "etcd://", 7) ? "" : c->discovery);
}

static void plan_etcd(const struct cli_up_paths *p, struct cli_daemon *d)
{
    char data[CLI_PATH_MAX + 16], client[160], peer[160], cluster[176];
    (void)kvs_format(d->name, sizeof d->name, "etcd");
    (void)kvs_format(d->program, sizeof d->program, "etcd");
    (void)kvs_format(data, sizeof data, "%s/etcd-data", p->run_dir);
    (void)kvs_format(client, sizeof client, "http://%s", p->etcd_client);
    (void)kvs_format(peer, sizeof peer, "http://%s", p->etcd_peer);
    (void)kvs_format(cluster, sizeof cluster, "kvasir=%s", peer);
    arg(d, d->program);
    flag(d, "--name", "kvasir");
    flag(d, "--data-dir", data);
    flag(d, "--listen-client-urls", client);
    flag(d, "--advertise-client-urls", client);
    flag(d, "--listen-peer-urls", peer);
    flag(d, "--initial-advertise-peer-urls", peer);
    flag(d, "--initial-cluster", cluster);
    flag(d, "--auto-compaction-mode", "periodic");
    flag(d, "--auto-compaction-retention", "10m");
    flag(d, "--logger", "zap");
    flag(d, "--log-outputs", "stderr");
    flag(d, "--log-level", "warn");
}

static void plan_router(const struct cli_up_config *c, const struct cli_up_paths *p, struct cli_daemon *d)
{
    char control[256], number[32], discovery[256];
    control_url(c, p, control, sizeof control);
    discovery_url(c, p, discovery, sizeof discovery);
    (void)kvs_format(d->name, sizeof d->name, "router");
    (void)kvs_format(d->program, sizeof d->program, "%s", p->bin_router);
    if (!c->control[0] && !is_control_url(c->discovery))
        (void)kvs_format(d->socket, sizeof d->socket, "%s/router.sock", p->socket_dir);
    arg(d, d->program);
    flag(d, "--name", d->name);
    flag(d, "--listen", p->listen);
    flag(d, "--control", control);
    flag(d, "--cluster", c->cluster);
    if (discovery[0])
        flag(d, "--discovery", discovery);
    flag(d, "--placement", placements[c->placement]);
    (void)snprintf(number, sizeof number, "%" PRIu32, c->local_threshold);
    flag(d, "--local-threshold", number);
    (void)snprintf(number, sizeof number, "%.6f", (double)c->deadline_us / 1e6);
    flag(d, "--deadline", number);
    if (!c->no_restart)
        flag(d, "--restart-wait", RESTART_WAIT);
    if (c->auth_file[0])
        flag(d, "--auth-file", c->auth_file);
    flag(d, "--log-level", c->log_level);
}

static void plan_worker(const struct cli_up_config *c, const struct cli_up_paths *p, const char *role,
                        const char *program, uint32_t index, uint32_t threads, struct cli_daemon *d)
{
    char control[256], url[256], discovery[256];
    control_url(c, p, control, sizeof control);
    discovery_url(c, p, discovery, sizeof discovery);
    (void)kvs_format(d->name, sizeof d->name, "%s-%u", role, index);
    (void)kvs_format(d->program, sizeof d->program, "%s", program);
    (void)kvs_format(d->socket, sizeof d->socket, "%s/%s.sock", p->socket_dir, d->name);
    (void)kvs_format(url, sizeof url, "ipc://%s", d->socket);
    arg(d, d->program);
    flag(d, "--name", d->name);
    flag(d, "--model", p->model);
    flag(d, "--model-name", p->model_name);
    flag(d, "--control", url);
    flag(d, "--listen", "127.0.0.1:0");
    flag(d, "--cluster", c->cluster);
    flag(d, "--discovery", discovery[0] ? discovery : control);
    flag_u32(d, "--threads", threads);
    flag(d, "--transport", transports[c->transport]);
    flag(d, "--kv-type", kv_types[c->kv_type]);
    flag_u32(d, "--chunk-tokens", c->chunk_tokens);
    flag_u32(d, "--block-tokens", c->block_tokens);
    flag_u32(d, "--group-layers", c->group_layers);
    flag_u32(d, "--context", c->context);
    if (c->kv_memory[0])
        flag(d, "--kv-memory", c->kv_memory);
    if (!c->prefix_cache)
        arg(d, "--no-prefix-cache");
    if (c->auth_file[0])
        flag(d, "--auth-file", c->auth_file);
    flag(d, "--log-level", c->log_level);
}

kvs_status cli_up_plan(const struct cli_up_config *c, const struct cli_up_paths *p, struct cli_up_plan *out,
                       struct kvs_error *err)
{
    memset(out, 0, sizeof *out);
    if (c->decode == 0 || c->decode > CLI_UP_WORKERS_MAX || c->prefill > CLI_UP_WORKERS_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "--decode takes 1 to %u workers, --prefill 0 to %u", CLI_UP_WORKERS_MAX,
                        CLI_UP_WORKERS_MAX);
    bool given = strncmp(c->discovery, "etcd://", 7) == 0, own = is_control_url(c->discovery);
    if (!given && !own && strcmp(c->discovery, "embedded") != 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "--discovery '%.80s' is neither etcd://HOST:PORT, nor embedded, nor the router's control URL",
                        c->discovery);
    if (own && c->control[0] && strcmp(c->control, c->discovery) != 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "--discovery and --control name two control URLs; give one of the two");
    if ((given || own) && c->etcd)
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "--etcd starts an etcd, --discovery names one that runs: give one of the two");
    if (strlen(p->socket_dir) > CLI_UP_SOCKET_DIR_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "the folder of the sockets has more than %u bytes",
                        CLI_UP_SOCKET_DIR_MAX);
    plan_router(c, p, &out->daemon[out->count++]);
    for (uint32_t i = 0; i < c->prefill; i++)
        plan_worker(c, p, "prefill", p->bin_prefill, i, c->threads, &out->daemon[out->count++]);
    for (uint32_t i = 0; i < c->decode; i++)
        plan_worker(c, p, "decode", p->bin_decode, i, c->threads, &out->daemon[out->count++]);
    out->workers = out->count - 1;
    out->routers_elsewhere = given;
    if (c->etcd)
        plan_etcd(p, &out->daemon[out->count++]);
    for (uint32_t i = 0; i < out->count; i++) {
        struct cli_daemon *d = &out->daemon[i];
        if (d->argc > CLI_UP_ARGS_MAX)
            return kvs_fail(err, KVS_SELF_CONFIG, "the arguments of %s are too long; use shorter paths", d->name);
        d->argv[d->argc] = NULL;
    }
    return KVS_OK;
}
