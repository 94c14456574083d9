/* doctor.c - `kvasir doctor`: looks at what commonly stops a cluster from starting or from being fast; each finding comes with its remedy.
 * Nothing is changed. Exit code 1 when something was found that will not work, 0 otherwise (warnings included).
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/doctor.h"
#include "cli/listen.h"
#include "cli/model_table.h"
#include "cli/process.h"
#include "model/card.h"
#include "model/model.h"
#include "proto/msg.h"
#include "sys/clock.h"
#include "sys/thread.h"
#include "worker/core/memory_rows.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

struct doctor_config {
    char model[CLI_PATH_MAX], listen[128], url[256], discovery[256], cluster[64], etcd_user[256], etcd_password[256];
    struct cli_doctor_memory memory;
};
#define MEMORY(field) offsetof(struct doctor_config, memory.field)
static const struct kvs_config_row rows[] = {
    {"doctor.model", "model", KVS_CFG_STRING, "smollm2", 0, CLI_PATH_MAX, NULL, "GGUF file, or the name of one that was pulled",
     offsetof(struct doctor_config, model)},
    {"doctor.listen", "listen", KVS_CFG_STRING, "127.0.0.1:8080", 0, 128, NULL, "address the API will listen at",
     offsetof(struct doctor_config, listen)},
    {"doctor.url", "url", KVS_CFG_STRING, "", 0, 256, NULL, "a running router's HOST:PORT: look at its cluster instead of this machine",
     offsetof(struct doctor_config, url)},
    {"doctor.discovery", "discovery", KVS_CFG_STRING, "", 0, 256, NULL, "etcd://HOST:PORT[,HOST:PORT]: look at that etcd instead",
     offsetof(struct doctor_config, discovery)},
    {"doctor.cluster", "cluster", KVS_CFG_NAME, "default", 0, 64, NULL, "name of the cluster whose members are counted in etcd",
     offsetof(struct doctor_config, cluster)},
    {"etcd.user", NULL, KVS_CFG_STRING, "", 0, 256, NULL, "user of an etcd with authentication", offsetof(struct doctor_config, etcd_user)},
    {"etcd.password", NULL, KVS_CFG_STRING, "", 0, 256, NULL, "and that one's password", offsetof(struct doctor_config, etcd_password)},
    {"doctor.prompt", "prompt", KVS_CFG_U32, "0", 0, MSG_TOKENS_MAX, NULL, "tokens of the prompt whose memory is predicted; 0: all of the context",
     MEMORY(prompt)},
    WRK_MEMORY_ROWS(MEMORY),
    {"doctor.threads", "threads", KVS_CFG_U32, "0", 0, 256, NULL, "as the workers' flag; 0: the processors shared out", MEMORY(threads)},
    {"doctor.workers", "workers", KVS_CFG_U32, "2", 1, 64, NULL, "workers on this machine", MEMORY(workers)},
};

#define GOOD CLI_GOOD
#define WARNING CLI_WARNING
#define BAD CLI_BAD
#define say cli_doctor_say
static uint32_t bad_count;

void cli_doctor_say(cli_verdict v, const char *what, const char *finding, const char *remedy)
{
    static const char *const words[] = {"ok", "warning", "error"};
    printf("%-8s %-14s %s%s%s\n", words[v], what, finding, remedy[0] ? "; " : "", remedy);
    bad_count += v == BAD;
}

static void check_port(const struct doctor_config *c)
{
    struct kvs_error err = {0};
    char where[160];
    if (cli_listen_check(c->listen, where, sizeof where, &err) == KVS_OK)
        say(GOOD, "port", where, "");
    else
        say(BAD, "port", err.text, "");
}

/* The file is there, whole, and of a kind that this build runs; then what it takes. */
static void check_model(const struct doctor_config *c)
{
    struct kvs_error err = {0};
    char path[CLI_PATH_MAX];
    struct stat seen;
    struct mdl_model m = {0};
    struct mdl_card card;
    const struct cli_model_entry *e = cli_model_find(c->model);
    kvs_status s = e ? cli_model_locate(e, path, sizeof path, &err) : cli_model_resolve(c->model, path, sizeof path, &err);
    if (s == KVS_OK && e)
        s = cli_model_check(e, path, &seen, &err); /* hashed once, whatever a note says */
    if (s == KVS_OK)
        s = mdl_model_open(path, &m, &err);
    if (s == KVS_OK)
        s = mdl_card_read(m.gguf, &card, &err);
    s = cli_model_fault(s, path, &err);
    char text[400];
    (void)kvs_format(text, sizeof text, "%s, %.1f MB%s", s == KVS_OK ? card.arch : "", (double)m.bytes / 1e6,
                     e ? ", hash as it should be" : "");
    say(s == KVS_OK ? GOOD : BAD, "model", s == KVS_OK ? text : err.text, "");
    if (s == KVS_OK)
        cli_doctor_memory(&c->memory, m.gguf, &card);
    mdl_model_close(&m);
}

static void check_cpu(void)
{
    char text[120];
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[4096];
    bool fma = false, seen = false;
    while (f && !seen && fgets(line, sizeof line, f)) {
        seen = !strncmp(line, "flags", 5) || !strncmp(line, "Features", 8);
        fma = seen && (strstr(line, " fma") != NULL || !strncmp(line, "Features", 8));
    }
    if (f)
        fclose(f);
    (void)kvs_format(text, sizeof text, "%u processors, %s", kvs_cpu_count(), fma ? "with FMA" : "without FMA");
    say(fma ? GOOD : BAD, "cpu", text, fma ? "" : "workers need a processor with FMA (x86-64-v3 or ARMv8)");
}

static void check_shm(void)
{
    struct statvfs v;
    char text[160];
    if (statvfs("/dev/shm", &v) != 0) {
        (void)kvs_format(text, sizeof text, "/dev/shm: %s", strerror(errno));
        say(WARNING, "shared memory", text, "mount a tmpfs there; without it UCX moves small messages by TCP");
        return;
    }
    uint64_t free_mb = (uint64_t)v.f_bavail * v.f_frsize / MIB;
    (void)kvs_format(text, sizeof text, "/dev/shm has %llu MB free", (unsigned long long)free_mb);
    say(free_mb < 64 ? WARNING : GOOD, "shared memory", text,
        free_mb < 64 ? "give the container more (docker: --shm-size=256m)" : "");
}

static int yama_scope(void)
{
    int scope = 0;
    FILE *f = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (f && fscanf(f, "%d", &scope) != 1)
        scope = 0;
    if (f)
        fclose(f);
    return scope;
}

/* Workers are siblings: each reads the other's memory for the near lane. Tried with two children of ours. */
static bool sibling_read_works(int *errno_out)
{
    static volatile uint64_t value;
    int gate[2];
    *errno_out = 0;
    if (pipe(gate) != 0)
        return false;
    value = 0x6b7661736972u;
    (void)fflush(stdout); /* what is not written yet is not the children's to write */
    pid_t target = fork();
    if (target == 0) {
        char c;
        close(gate[1]);
        _exit(read(gate[0], &c, 1) > 0 ? 1 : 0); /* lives until our end closes */
    }
    pid_t reader = target > 0 ? fork() : -1;
    if (reader == 0) {
        uint64_t seen = 0;
        union {
            const volatile uint64_t *in;
            void *out;
        } at = {.in = &value};
        struct iovec to = {&seen, sizeof seen}, from = {at.out, sizeof seen};
        ssize_t n = process_vm_readv(target, &to, 1, &from, 1, 0);
        _exit(n == (ssize_t)sizeof seen && seen == value ? 0 : errno & 127);
    }
    int status = 0;
    bool ok = reader > 0 && waitpid(reader, &status, 0) == reader && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ok && WIFEXITED(status))
        *errno_out = WEXITSTATUS(status);
    close(gate[0]);
    close(gate[1]);
    if (target > 0)
        (void)waitpid(target, &status, 0);
    return ok;
}

static void check_near(void)
{
    int why = 0;
    char text[200];
    bool ok = sibling_read_works(&why);
    (void)kvs_format(text, sizeof text,
                     ok ? "processes of uid %u may read each other's memory (shm lane, cma)%s%s"
                        : "processes of uid %u may not read each other's memory: %s%s",
                     (unsigned)getuid(), ok ? "" : strerror(why), "");
    if (ok)
        say(GOOD, "near transfers", text, "");
    else if (yama_scope() > 0)
        say(WARNING, "near transfers", text, "set kernel.yama.ptrace_scope=0, or KV goes by TCP");
    else
        say(WARNING, "near transfers", text,
            "allow process_vm_readv (docker: --cap-add SYS_PTRACE), or KV goes by TCP");
}

static void check_ucx(void)
{
    const char *argv[] = {"ucx_info", "-d", NULL};
    struct kvs_buf out;
    kvs_buf_init(&out, 4u << 20);
    struct kvs_error err = {0};
    int code = 0;
    kvs_status s = cli_run(argv, 20000, &out, &code, &err);
    if (s != KVS_OK || code != 0) {
        say(WARNING, "ucx", code == 127 ? "ucx_info is not installed" : "ucx_info failed",
            "install ucx-utils to see the transports");
        kvs_buf_fini(&out);
        return;
    }
    static const char *const names[] = {"tcp", "cma", "sysv", "posix", "rc_verbs", "rc_mlx5", "cuda_copy"};
    char text[200];
    size_t n = kvs_format(text, sizeof text, "transports");
    bool tcp = false, cma = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char line[64];
        (void)kvs_format(line, sizeof line, "Transport: %s\n", names[i]);
        if (!strstr(kvs_buf_text(&out), line))
            continue;
        n += kvs_format(text + n, sizeof text - n, " %s", names[i]);
        tcp = tcp || !strcmp(names[i], "tcp");
        cma = cma || !strcmp(names[i], "cma");
    }
    say(tcp ? GOOD : BAD, "ucx", text,
        !tcp  ? "this UCX has no tcp transport: install Debian's libucx0"
        : cma ? ""
              : "without cma KV goes by TCP");
    kvs_buf_fini(&out);
}

/* Workers take the same variable from the same environment. */
static void check_devices(void)
{
    const char *devices = getenv("UCX_NET_DEVICES");
    char text[300];
    bool loopback = !devices || !devices[0] || !strcmp(devices, "lo");
    (void)kvs_format(text, sizeof text, "KV goes over %.60s: it is not encrypted, and whoever reaches UCX's TCP ports there can end a worker",
                     loopback ? "lo" : devices);
    say(loopback ? GOOD : WARNING, "devices", loopback ? "KV between workers stays on loopback (UCX_NET_DEVICES names no other)" : text,
        loopback ? "" : "name a device of a private network in UCX_NET_DEVICES");
}

static void check_programs(void)
{
    static const char *const programs[] = {"kvasir-router", "kvasir-prefill-worker", "kvasir-decode-worker"};
    struct kvs_error err = {0};
    char path[CLI_PATH_MAX];
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        if (cli_sibling(programs[i], path, sizeof path, &err) != KVS_OK) {
            say(BAD, "programs", err.text, "");
            return;
        }
    }
    say(GOOD, "programs", "router and workers are beside kvasir", "");
}

int cli_doctor(int argc, char **argv)
{
    struct doctor_config c;
    memset(&c, 0, sizeof c);
    static const struct cli_usage usage = {.text = "usage: kvasir doctor [--model FILE|NAME] [--prompt TOKENS] [--listen HOST:PORT]\n"
                                                   "       kvasir doctor [--url HOST:PORT] [--discovery etcd://HOST:PORT[,HOST:PORT]] [--cluster NAME]"};
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    bad_count = 0;
    if (c.discovery[0])
        cli_doctor_etcd(c.discovery, c.cluster, c.etcd_user, c.etcd_password);
    if (c.url[0])
        cli_doctor_cluster(c.url);
    if (c.discovery[0] || c.url[0])
        return bad_count ? CLI_EXIT_FAILED : 0;
    check_programs();
    check_cpu();
    check_port(&c);
    check_model(&c);
    check_shm();
    check_near();
    check_ucx();
    check_devices();
    return bad_count ? CLI_EXIT_FAILED : 0;
}
