/* up.c - `kvasir up`: a whole cluster on this machine, each daemon its own process, watched until Ctrl-C or SIGTERM.
 * Everything that can be wrong is looked at before the first process is started: flags, model, port, run directory. A daemon that refuses to
 * start ends the whole with its one line of cause. On stdout, one line each: "model NAME", "run-dir DIR", "ready URL".
 * Nothing outlives this process: children are told to end, then killed; were this process killed, the kernel kills them (PR_SET_PDEATHSIG).
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/cluster_view.h"
#include "cli/engine_run.h"
#include "cli/etcd_taken.h"
#include "cli/http_client.h"
#include "cli/listen.h"
#include "cli/model_table.h"
#include "cli/process.h"
#include "cli/supervise.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define READY_TIMEOUT_US (180u * 1000000u)
#define LINK_GRACE_US 5000000u
#define TELL_AFTER_US 10000000u /* by then a small model has long been up; later, who waits is told for what */
#define TELL_EVERY_US 30000000u
#define ASK_MS 3000u /* a machine that starts many daemons at once may leave the router a second without a core; short ones never got an answer */
#define STOP_GRACE_US 5000000u
#define GIB (UINT64_C(1) << 30)

struct up {
    struct cli_up_config config;
    struct cli_up_plan plan;
    struct cli_supervisor supervisor;
    char model[CLI_PATH_MAX], model_name[128], listen[160], run_dir[CLI_PATH_MAX], socket_dir[CLI_PATH_MAX], url[200],
        etcd_client[160], etcd_peer[160];
    char bin[3][CLI_PATH_MAX];
    bool own_run_dir, own_socket_dir;
    int lock_fd, port_fd[3]; /* ports are held while daemons that listen there come and go; 0: none */
};

/* The header is read as a worker will read it, so that a broken file is said here, once, and not by each daemon. */
static kvs_status check_model(struct up *u, struct kvs_error *err)
{
    struct mdl_model m = {0};
    struct mdl_card card;
    struct kvc_layout layout;
    kvs_status s = mdl_model_open(u->model, &m, err);
    if (s == KVS_OK)
        s = mdl_card_read(m.gguf, &card, err);
    if (s == KVS_OK)
        s = eng_kv_layout(&card, (kvc_type)u->config.kv_type, u->config.block_tokens, u->config.group_layers, &layout,
                          err);
    s = cli_model_fault(s, u->model, err);
    if (s == KVS_OK && u->config.context > card.context_length)
        fprintf(stderr, "kvasir: warning: --context %u is more than the %u that this model was made for\n",
                u->config.context, card.context_length);
    mdl_model_close(&m);
    return s;
}

/* A daemon's working directory is nobody's business. The file's own name stays, be it a link: the parts of a model are found by it. */
static kvs_status resolve_folder(const char *path, char *out, size_t cap, struct kvs_error *err)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char folder[CLI_PATH_MAX];
    (void)kvs_format(folder, sizeof folder, "%.*s", slash ? (int)(base - path) : 1, slash ? path : ".");
    char *real = realpath(folder, NULL);
    bool fits = real && strlen(real) + 1 + strlen(base) < cap;
    if (fits)
        (void)kvs_format(out, cap, "%s/%s", real, base);
    free(real);
    return fits ? KVS_OK : kvs_fail(err, KVS_SELF_CONFIG, "the model's path cannot be resolved or is too long");
}

static kvs_status find_model(struct up *u, struct kvs_error *err)
{
    const struct cli_model_entry *e = cli_model_find(u->config.model);
    char path[CLI_PATH_MAX];
    kvs_status s = cli_model_resolve(u->config.model, path, sizeof path, err);
    if (s != KVS_OK && e)
        s = cli_model_pull(e, path, sizeof path, err); /* which checks what it has fetched */
    if (s != KVS_OK)
        return s;
    s = resolve_folder(path, u->model, sizeof u->model, err);
    if (s != KVS_OK)
        return s;
    if (u->config.model_name[0])
        (void)kvs_format(u->model_name, sizeof u->model_name, "%s", u->config.model_name);
    else
        cli_model_default_name(path, u->model_name, sizeof u->model_name);
    return check_model(u, err);
}

static bool is_live_router(const char *run_dir)
{
    char path[CLI_PATH_MAX + 32], exe[CLI_PATH_MAX];
    (void)kvs_format(path, sizeof path, "%s/router.pid", run_dir);
    FILE *f = fopen(path, "re");
    long pid = 0;
    bool read_one = f && fscanf(f, "%ld", &pid) == 1 && pid > 0;
    if (f)
        fclose(f);
    if (!read_one || kill((pid_t)pid, 0) != 0)
        return false;
    (void)kvs_format(path, sizeof path, "/proc/%ld/exe", pid);
    ssize_t n = readlink(path, exe, sizeof exe - 1);
    if (n <= 0)
        return false;
    exe[n] = '\0';
    return strstr(exe, "kvasir-router") != NULL; /* else the number went to another program */
}

static kvs_status make_temp_dir(char *out, size_t cap, struct kvs_error *err)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    if (!base || base[0] != '/' || access(base, W_OK) != 0)
        base = "/tmp";
    (void)kvs_format(out, cap, "%s/kvasir-XXXXXX", strlen(base) < CLI_UP_SOCKET_DIR_MAX - 16 ? base : "/tmp");
    return mkdtemp(out) ? KVS_OK
                        : kvs_fail(err, KVS_SELF_IO, "cannot make a folder in '%.120s': %s; give --run-dir", base,
                                   strerror(errno));
}

static kvs_status prepare_run_dir(struct up *u, struct kvs_error *err)
{
    kvs_status s;
    if (u->config.run_dir[0]) {
        s = cli_make_dirs(u->config.run_dir, err);
        char *real = s == KVS_OK ? realpath(u->config.run_dir, NULL) : NULL;
        if (s == KVS_OK && (!real || strlen(real) >= sizeof u->run_dir))
            s = kvs_fail(err, KVS_SELF_CONFIG, "--run-dir '%.120s' cannot be resolved or is too long",
                         u->config.run_dir);
        if (s == KVS_OK)
            (void)kvs_format(u->run_dir, sizeof u->run_dir, "%s", real);
        free(real);
    } else {
        s = make_temp_dir(u->run_dir, sizeof u->run_dir, err);
        u->own_run_dir = s == KVS_OK;
    }
    if (s != KVS_OK)
        return s;
    char lock[CLI_PATH_MAX + 16];
    (void)kvs_format(lock, sizeof lock, "%s/.lock", u->run_dir);
    u->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (u->lock_fd < 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "cannot write into --run-dir '%.120s': %s", u->run_dir, strerror(errno));
    if (flock(u->lock_fd, LOCK_EX | LOCK_NB) != 0 || is_live_router(u->run_dir))
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "--run-dir '%.120s' is in use by a running cluster; end that one or choose another folder",
                        u->run_dir);
    if (strlen(u->run_dir) <= CLI_UP_SOCKET_DIR_MAX) {
        (void)kvs_format(u->socket_dir, sizeof u->socket_dir, "%s", u->run_dir);
        return KVS_OK;
    }
    s = make_temp_dir(u->socket_dir, sizeof u->socket_dir, err); /* a socket's path has 107 bytes at most */
    u->own_socket_dir = s == KVS_OK;
    return s;
}

/* What depends on how many workers share this machine. */
static void share_machine(struct cli_up_config *c)
{
    uint32_t workers = c->prefill + c->decode;
    if (c->threads == 0)
        c->threads = kvs_cpu_count() / workers > 0 ? kvs_cpu_count() / workers : 1;
    if (!c->kv_memory[0] && workers > 2) { /* a quarter each would be more than there is */
        uint64_t share = kvs_memory_available() / 2 / workers;
        (void)kvs_format(c->kv_memory, sizeof c->kv_memory, "%llu",
                         (unsigned long long)(share < 2 * GIB ? share : 2 * GIB));
    }
}

static kvs_status prepare_etcd(struct up *u, struct kvs_error *err)
{
    static const char *const version[] = {"etcd", "--version", NULL};
    int code = 0;
    if (cli_run(version, 5000, NULL, &code, NULL) != KVS_OK || code != 0)
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "--etcd needs the program etcd in PATH: install etcd-server, or give --discovery "
                        "etcd://HOST:PORT of one that runs");
    char data[CLI_PATH_MAX + 16]; /* an earlier cluster's, whose leases mean nothing now */
    (void)kvs_format(data, sizeof data, "%s/etcd-data", u->run_dir);
    cli_remove_tree(data);
    kvs_status s = cli_listen_hold("127.0.0.1:0", u->etcd_client, sizeof u->etcd_client, &u->port_fd[1], err);
    return s == KVS_OK ? cli_listen_hold("127.0.0.1:0", u->etcd_peer, sizeof u->etcd_peer, &u->port_fd[2], err) : s;
}

/* Both clusters would start, and one of them serve with the other's workers; nobody else tells those who started them. */
static void warn_of_taken_names(const struct up *u)
{
    char name[64];
    cli_etcd_taken(u->config.discovery, u->config.cluster, &u->plan, name, sizeof name);
    if (name[0])
        fprintf(stderr, "kvasir: warning: cluster \"%s\" in this etcd has a %s already; where that one still runs, this one takes its place: give "
                        "another --cluster, or start further workers by hand, each with its own --name\n",
                u->config.cluster, name);
}

static kvs_status prepare(struct up *u, struct kvs_error *err)
{
    static const char *const programs[] = {"kvasir-router", "kvasir-prefill-worker", "kvasir-decode-worker"};
    kvs_log_level level;
    kvs_status s = KVS_OK;
    if (!kvs_log_level_parse(u->config.log_level, &level))
        s = kvs_fail(err, KVS_SELF_CONFIG, "--log-level '%s' is not one of error, warn, info, debug, trace",
                     u->config.log_level);
    uint64_t kv_memory = 0;
    if (s == KVS_OK && u->config.kv_memory[0] &&
        (kvs_parse_size(u->config.kv_memory, &kv_memory) != KVS_OK || kv_memory == 0))
        s = kvs_fail(err, KVS_SELF_CONFIG, "--kv-memory '%s' is not a size; write 512M or 2G", u->config.kv_memory);
    uint64_t total = kvs_memory_total(), workers = u->config.prefill + u->config.decode;
    if (s == KVS_OK && u->config.kv_memory[0] && total && kv_memory > total / workers)
        s = kvs_fail(err, KVS_SELF_CONFIG, "--kv-memory %s for each of %llu workers is more than the %.1f GB of this machine; give at most %lluM",
                     u->config.kv_memory, (unsigned long long)workers, (double)total / 1e9, (unsigned long long)(total / workers >> 20));
    for (size_t i = 0; s == KVS_OK && i < 3; i++)
        s = cli_sibling(programs[i], u->bin[i], sizeof u->bin[i], err);
    if (s == KVS_OK)
        s = find_model(u, err);
    if (s == KVS_OK)
        s = cli_listen_hold(u->config.listen, u->listen, sizeof u->listen, &u->port_fd[0], err);
    if (s == KVS_OK)
        s = prepare_run_dir(u, err);
    if (s != KVS_OK)
        return s;
    if (u->config.etcd)
        s = prepare_etcd(u, err);
    if (s != KVS_OK)
        return s;
    share_machine(&u->config);
    struct cli_up_paths p = {.bin_router = u->bin[0],
                             .bin_prefill = u->bin[1],
                             .bin_decode = u->bin[2],
                             .model = u->model,
                             .model_name = u->model_name,
                             .listen = u->listen,
                             .socket_dir = u->socket_dir,
                             .run_dir = u->run_dir,
                             .etcd_client = u->etcd_client,
                             .etcd_peer = u->etcd_peer};
    (void)kvs_format(u->url, sizeof u->url, "http://%s", u->listen);
    if (!strncmp(u->listen, "0.0.0.0:", 8))
        (void)kvs_format(u->url, sizeof u->url, "http://127.0.0.1:%s", u->listen + 8);
    s = cli_up_plan(&u->config, &p, &u->plan, err);
    if (s == KVS_OK)
        warn_of_taken_names(u);
    return s;
}

/* The line in which a daemon said why it could not start: the last one about an error, else the last one. */
static void last_error_line(const struct up *u, uint32_t i, char *out, size_t cap)
{
    char path[CLI_PATH_MAX + 32], line[400];
    (void)kvs_format(out, cap, "it left no message");
    (void)kvs_format(path, sizeof path, "%s/%s.log", u->run_dir, u->plan.daemon[i].name);
    FILE *f = fopen(path, "re");
    bool error_seen = false;
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        bool error = strstr(line, "error") != NULL;
        if (line[0] && (error || !error_seen))
            (void)kvs_format(out, cap, "%s", line);
        error_seen = error_seen || error;
    }
    if (f)
        fclose(f);
}

/* A child that ended for good before the cluster was ready: why the whole cannot start. */
static kvs_status look_for_dead(const struct up *u, struct kvs_error *err)
{
    for (uint32_t i = 0; i < u->plan.count; i++) {
        const struct cli_child *c = &u->supervisor.child[i];
        if (c->pid > 0 || c->restart_at_us)
            continue;
        char why[200];
        last_error_line(u, i, why, sizeof why);
        return kvs_fail(err, KVS_SELF_IO, "%s did not start (%s %d): %s", u->plan.daemon[i].name,
                        c->code > 128 ? "signal" : "code", c->code > 128 ? c->code - 128 : c->code, why);
    }
    return KVS_OK;
}

/* All workers have joined; workers_out: how many have; linked_out: and every pair of them can move pages. */
static bool all_joined(const struct up *u, uint32_t *workers_out, bool *linked_out)
{
    json_t *view = NULL;
    if (cli_cluster_view(u->url, ASK_MS, &view, NULL) != KVS_OK)
        return false;
    uint32_t workers = *workers_out = cli_cluster_workers(view, linked_out);
    json_decref(view);
    char url[256];
    struct cli_http ready = {.url = url, .timeout_ms = ASK_MS, .connect_ms = ASK_MS};
    (void)kvs_format(url, sizeof url, "%s/health/ready", u->url);
    return workers >= u->plan.workers && cli_http(&ready, NULL) == KVS_OK && ready.status == 200;
}

/* Nobody should have to guess what a start that takes long is waiting for. */
static void tell_waiting(const struct up *u, uint32_t workers)
{
    fprintf(stderr, "kvasir: warning: still waiting: %u of %u workers are ready; logs in %s", workers, u->plan.workers, u->run_dir);
    if (strncmp(u->config.discovery, "etcd://", 7) == 0)
        fprintf(stderr, "; whether etcd answers says: kvasir doctor --discovery %s", u->config.discovery);
    fputc('\n', stderr);
}

/* KVS_REQ_CANCELLED: asked to stop meanwhile. */
static kvs_status wait_ready(struct up *u, struct kvs_error *err)
{
    uint64_t deadline = kvs_now_us() + READY_TIMEOUT_US, joined_at = 0, tell_at = kvs_now_us() + TELL_AFTER_US;
    uint32_t workers = 0;
    for (;;) {
        if (cli_supervisor_wait(&u->supervisor, kvs_now_us() + 50000) == CLI_WAKE_STOP)
            return kvs_fail(err, KVS_REQ_CANCELLED, "stopped");
        kvs_status s = look_for_dead(u, err);
        bool linked = false, joined = s == KVS_OK && all_joined(u, &workers, &linked);
        uint64_t now = kvs_now_us();
        if (s != KVS_OK || (joined && linked))
            return s;
        if (joined && !joined_at)
            joined_at = now;
        if (joined && now >= joined_at + LINK_GRACE_US) {
            fprintf(stderr,
                    "kvasir: warning: not every decode worker has a link to every prefill worker; see the logs in %s\n",
                    u->run_dir);
            return KVS_OK;
        }
        if (now >= tell_at) {
            tell_waiting(u, workers);
            tell_at = now + TELL_EVERY_US;
        }
        if (now >= deadline)
            return kvs_fail(err, KVS_PEER_TIMEOUT, "the cluster was not ready within 180 s; see the logs in %s",
                            u->run_dir);
    }
}

static kvs_status serve(struct up *u, struct kvs_error *err)
{
    kvs_status s = cli_supervisor_init(&u->supervisor, &u->plan, u->run_dir, !u->config.no_restart, err);
    if (s != KVS_OK)
        return s;
    s = cli_supervisor_start(&u->supervisor, err);
    if (s == KVS_OK)
        s = wait_ready(u, err);
    if (s == KVS_OK) {
        u->supervisor.ready = true;
        printf("model %s\nrun-dir %s\nready %s\n", u->model_name, u->run_dir, u->url);
        fflush(stdout);
        while (cli_supervisor_wait(&u->supervisor, UINT64_MAX) != CLI_WAKE_STOP)
            continue;
    }
    cli_supervisor_stop(&u->supervisor, STOP_GRACE_US);
    return s == KVS_REQ_CANCELLED ? KVS_OK : s;
}

int cli_up(int argc, char **argv)
{
    static struct up u = {.lock_fd = -1};
    static const struct cli_usage usage = {
        .text = "usage: kvasir up [--model FILE|NAME] [FLAGS]\n"
                "Starts a router, prefill workers and decode workers on this machine; Ctrl-C ends them all."};
    int rest, code = cli_flags(cli_up_rows, cli_up_row_count, &u.config, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    struct kvs_error err = {0};
    kvs_status s = prepare(&u, &err);
    if (s == KVS_OK)
        s = serve(&u, &err);
    if (u.own_socket_dir)
        cli_remove_tree(u.socket_dir);
    if (u.own_run_dir && s != KVS_PEER_TIMEOUT) /* that error's text sends the reader to the logs */
        cli_remove_tree(u.run_dir);
    for (size_t i = 0; i < sizeof u.port_fd / sizeof u.port_fd[0]; i++)
        if (u.port_fd[i] > 0)
            close(u.port_fd[i]);
    if (u.lock_fd >= 0)
        close(u.lock_fd);
    return s == KVS_OK ? 0 : cli_failed(&err);
}
