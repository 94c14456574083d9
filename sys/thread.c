/* thread.c - starting and joining threads, their floating-point environment, and what the machine offers.
 * All signals are blocked in the new thread from its first instruction on: they belong to the loop's signalfd. The
 * floating-point environment is set there too, since a library loaded later (or a parent thread) may have changed MXCSR,
 * and results must not depend on the thread that computed them (arithmetic contract).
 * CPUs and memory are what this process may really use: affinity and cgroup limits included, since in a container the
 * machine's figures are somebody else's.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sys/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct kvs_thread {
    pthread_t id;
    char name[16];
    void (*fn)(void *);
    void *arg;
};

void kvs_fp_environment(void)
{
    KVS_ASSERT(fesetenv(FE_DFL_ENV) == 0);
}

static void *thread_main(void *arg)
{
    struct kvs_thread *t = arg;
    (void)pthread_setname_np(pthread_self(), t->name);
    kvs_fp_environment();
    t->fn(t->arg);
    return NULL;
}

kvs_status kvs_thread_start(const char *name, void (*fn)(void *), void *arg, struct kvs_thread **out)
{
    struct kvs_thread *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return KVS_SELF_NOMEM;
    }
    t->fn = fn;
    t->arg = arg;
    kvs_format(t->name, sizeof t->name, "%s", name);
    sigset_t all, before;
    sigfillset(&all);
    /* Faults of the thread itself stay open: a blocked one ends the process, handler or not (model/file.c has one). */
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    KVS_ASSERT(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    int rc = pthread_create(&t->id, NULL, thread_main, t);
    KVS_ASSERT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    if (rc != 0) {
        free(t);
        return KVS_SELF_NOMEM;
    }
    *out = t;
    return KVS_OK;
}

void kvs_thread_join(struct kvs_thread *t)
{
    if (t == NULL) {
        return;
    }
    KVS_ASSERT(pthread_join(t->id, NULL) == 0);
    free(t);
}

/* Reads a small file of /proc or /sys as text; false when it is not there. */
static bool read_text(const char *path, char *out, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    size_t n = 0;
    while (n < cap - 1) {
        ssize_t got = read(fd, out + n, cap - 1 - n);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        n += (size_t)got;
    }
    out[n] = '\0';
    (void)close(fd);
    return n > 0;
}

/* The number that follows key in text; false when there is none ("max", no such key). */
static bool number_after(const char *text, const char *key, uint64_t *out)
{
    const char *p = strstr(text, key);
    if (p == NULL) {
        return false;
    }
    p += strlen(key);
    while (*p == ' ' || *p == '\t') {
        p++;
    }
    char *end;
    errno = 0;
    unsigned long long v = strtoull(p, &end, 10);
    if (end == p || errno != 0 || *p == '-') {
        return false;
    }
    *out = v;
    return true;
}

/* Our cgroup's directory (version 2), "" at the root; strip the last part to go up. */
static bool cgroup_path(char *out, size_t cap)
{
    char text[4096];
    if (!read_text("/proc/self/cgroup", text, sizeof text)) {
        return false;
    }
    const char *p = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");
    if (p == NULL) {
        return false;
    }
    p = strchr(p, '/');
    size_t n = strcspn(p, "\n");
    kvs_format(out, cap, "%.*s", n == 1 ? 0 : (int)n, p);
    return true;
}

static bool go_up(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    return true;
}

uint32_t kvs_cpu_count(void)
{
    cpu_set_t set;
    uint64_t count = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        count = (uint64_t)CPU_COUNT(&set);
    } else {
        long online = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than a cpu_set_t holds */
        count = online > 0 ? (uint64_t)online : 1;
    }
    char path[1024], file[1200], text[128];
    if (cgroup_path(path, sizeof path)) {
        do {
            uint64_t quota, period;
            kvs_format(file, sizeof file, "/sys/fs/cgroup%s/cpu.max", path);
            if (read_text(file, text, sizeof text) && number_after(text, "", &quota) &&
                number_after(text, " ", &period) && period > 0) {
                uint64_t cpus = (quota + period - 1) / period;
                count = cpus < count ? cpus : count;
            }
        } while (go_up(path));
    }
    return count > 0 ? (uint32_t)count : 1;
}

/* What a cgroup may still take: its limit, less what it uses, plus file cache that the kernel would drop first. */
static bool cgroup_room(const char *path, uint64_t *room_out)
{
    char file[1200], text[64], stat[8192];
    uint64_t limit, used, cache = 0;
    kvs_format(file, sizeof file, "/sys/fs/cgroup%s/memory.max", path);
    if (!read_text(file, text, sizeof text) || !number_after(text, "", &limit)) {
        return false;
    }
    kvs_format(file, sizeof file, "/sys/fs/cgroup%s/memory.current", path);
    if (!read_text(file, text, sizeof text) || !number_after(text, "", &used)) {
        return false;
    }
    kvs_format(file, sizeof file, "/sys/fs/cgroup%s/memory.stat", path);
    if (read_text(file, stat, sizeof stat)) {
        (void)number_after(stat, "\ninactive_file ", &cache);
    }
    used = cache < used ? used - cache : 0;
    *room_out = limit > used ? limit - used : 0;
    return true;
}

static bool cgroup1_room(uint64_t *room_out)
{
    char limit_text[64], used_text[64];
    uint64_t limit, used;
    if (!read_text("/sys/fs/cgroup/memory/memory.limit_in_bytes", limit_text, sizeof limit_text) ||
        !read_text("/sys/fs/cgroup/memory/memory.usage_in_bytes", used_text, sizeof used_text) ||
        !number_after(limit_text, "", &limit) || !number_after(used_text, "", &used)) {
        return false;
    }
    *room_out = limit > used ? limit - used : 0;
    return true;
}

uint64_t kvs_memory_total(void)
{
    char text[4096], path[1024], file[1200];
    uint64_t kib = 0, limit, bytes = 0;
    if (read_text("/proc/meminfo", text, sizeof text) && number_after(text, "MemTotal:", &kib)) {
        bytes = kib * 1024;
    }
    if (cgroup_path(path, sizeof path)) {
        do {
            kvs_format(file, sizeof file, "/sys/fs/cgroup%s/memory.max", path);
            if (read_text(file, text, sizeof text) && number_after(text, "", &limit) && limit < bytes) {
                bytes = limit;
            }
        } while (go_up(path));
    }
    if (read_text("/sys/fs/cgroup/memory/memory.limit_in_bytes", text, sizeof text) && number_after(text, "", &limit) && limit < bytes) {
        bytes = limit;
    }
    return bytes;
}

uint64_t kvs_memory_available(void)
{
    char text[4096], path[1024];
    uint64_t kib = 0, room;
    uint64_t bytes = 0;
    if (read_text("/proc/meminfo", text, sizeof text) && number_after(text, "MemAvailable:", &kib)) {
        bytes = kib * 1024;
    }
    if (cgroup_path(path, sizeof path)) {
        do {
            if (cgroup_room(path, &room) && room < bytes) {
                bytes = room;
            }
        } while (go_up(path));
    }
    if (cgroup1_room(&room) && room < bytes) {
        bytes = room;
    }
    return bytes;
}
