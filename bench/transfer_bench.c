/* transfer_bench.c - how fast KV pages travel between two processes of this machine, beside ucx_perftest in the same run.
 *
 *   transfer_bench [--memory MIB] [--repeat N] [--window N] [--json]
 *
 * For each lane (near = cma, tcp) and page size a source process sends all pages of its region, in the order of a grant, into this
 * process's region: headers, every check, checksums on both sides, the sleep on event descriptors, END and all, exactly as workers do.
 * The figure is bytes over the time from the first message begun to the last one landed and verified, best and median of the repeats;
 * regions are larger than the caches, so pages are cold. ucx_perftest (ucp_am_bw) polls one hot buffer, without peer-failure mode and
 * without checksums: it is an upper mark for the transport, not for the task.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/core/source.h"
#include "kvtransfer/port.h"
#include "sys/clock.h"
#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REPEAT_MAX = 64, SINK_EPOCH = 1, SOURCE_EPOCH = 2 };

struct end { /* one end of the benchmark: a port and its region */
    struct kvt_port *port;
    struct kvt_region region;
    sem_t woken;
};
struct address {
    uint32_t bytes;
    uint8_t data[KVT_ADDRESS_MAX];
};
struct order {
    uint64_t xfer, page_bytes;
    uint32_t pages;
};
struct options {
    uint32_t memory_mib, repeat, window;
    bool json;
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "transfer_bench: %s\n", what);
    exit(1);
}

static void check(kvs_status st, const char *what)
{
    if (st != KVS_OK) {
        fprintf(stderr, "transfer_bench: %s: %s\n", what, kvs_status_name(st));
        exit(1);
    }
}

static void wake(void *user)
{
    sem_post(&((struct end *)user)->woken);
}

static struct kvt_event next(struct end *e, kvt_event_kind kind)
{
    struct kvt_event ev;
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 60;
    for (;;) {
        while (kvt_port_next(e->port, &ev)) {
            if (ev.kind == kind)
                return ev;
            if (ev.kind == KVT_EV_ERROR)
                die("the other end is gone");
        }
        if (sem_timedwait(&e->woken, &limit) != 0)
            die("nothing happened for 60 s");
    }
}

static void end_open(struct end *e, uint64_t epoch, const struct options *o, kvt_lane lane, struct address *address_out)
{
    struct kvs_error err;
    sem_init(&e->woken, 0, 0);
    const struct kvt_port_config c = {.epoch = epoch, .id = "bench", .window = o->window, .wake = wake, .wake_user = e};
    if (kvt_port_create(&c, &e->port, &err) != KVS_OK)
        die(err.text);
    check(kvt_region_create(e->port, (uint64_t)o->memory_mib << 20, &e->region), "region");
    memset(e->region.base, (int)epoch, (size_t)e->region.bytes); /* no first-touch faults in the figures */
    check(kvt_peer_open(e->port, 0, lane), "open");
    struct kvt_event ev = next(e, KVT_EV_ADDRESS);
    address_out->bytes = ev.address_bytes;
    memcpy(address_out->data, ev.address, ev.address_bytes);
}

static void put(int fd, const void *p, size_t n)
{
    if (write(fd, p, n) != (ssize_t)n)
        die("the pipe to the other end broke");
}

static bool get(int fd, void *p, size_t n)
{
    size_t got = 0;
    while (got < n) {
        ssize_t r = read(fd, (char *)p + got, n - got);
        if (r <= 0)
            return false;
        got += (size_t)r;
    }
    return true;
}

/* ---- the source process: transfer_bench --source LANE MEMORY WINDOW ---- */

static uint32_t serve(struct end *e, const struct order *o)
{
    struct kvt_source *s;
    struct kvt_header h;
    kvs_status status;
    uint32_t sent = 0, posted = 0;
    check(kvt_source_create(&(struct kvt_source_config){SINK_EPOCH, o->xfer, o->xfer, o->pages, UINT64_MAX}, &s),
          "source");
    for (; posted < o->pages; posted++) {
        while (kvt_source_in_flight(s) >= 64)
            kvt_source_sent(s, next(e, KVT_EV_SENT).status);
        check(kvt_source_post(s, KVT_PAGE, posted, 0, 0, o->page_bytes, &h), "post");
        check(kvt_send(e->port, 0, &h, e->region.base + posted * o->page_bytes, posted), "send");
    }
    while (!kvt_source_take_end(s, &status, &sent))
        kvt_source_sent(s, next(e, KVT_EV_SENT).status);
    check(status, "transfer");
    kvt_source_destroy(s);
    return sent;
}

static int run_source(const char *lane, const struct options *o)
{
    struct end e;
    struct address mine, theirs;
    struct order order;
    end_open(&e, SOURCE_EPOCH, o, strcmp(lane, "near") == 0 ? KVT_LANE_NEAR : KVT_LANE_TCP, &mine);
    put(1, &mine, sizeof mine);
    if (!get(0, &theirs, sizeof theirs))
        return 1;
    check(kvt_peer_connect(e.port, 0, SINK_EPOCH, theirs.data, theirs.bytes), "connect");
    next(&e, KVT_EV_UP);
    while (get(0, &order, sizeof order)) {
        uint32_t sent = serve(&e, &order);
        put(1, &sent, sizeof sent);
    }
    _exit(0);
}

/* ---- the sink ---- */

static pid_t spawn(char *const argv[], int *in_out, int *out_out)
{
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0)
        die("no pipe");
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        die("no process");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(to[0], 0);
        dup2(from[1], 1);
        close_range(3, UINT_MAX, 0);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    *in_out = to[1];
    *out_out = from[0];
    return pid;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double transfer(struct end *e, int in, int out, uint64_t xfer, uint64_t page)
{
    struct order o = {xfer, page, (uint32_t)(e->region.bytes / page)};
    struct kvt_want *wants = calloc(o.pages, sizeof *wants);
    struct kvt_sink *s;
    uint32_t sent;
    if (wants == NULL)
        die("out of memory");
    for (uint32_t i = 0; i < o.pages; i++)
        wants[i] = (struct kvt_want){.block = i, .bytes = page, .dest = e->region.base + i * page};
    check(kvt_sink_create(&(struct kvt_sink_config){SINK_EPOCH, xfer, xfer, wants, o.pages}, &s), "sink");
    free(wants);
    check(kvt_grant(e->port, 0, s), "grant");
    put(in, &o, sizeof o);
    if (!get(out, &sent, sizeof sent))
        die("the source is gone");
    check(kvt_grant_end(e->port, xfer, KVS_OK, sent), "end");
    struct kvt_event ev = next(e, KVT_EV_GRANT);
    check(ev.status, "transfer");
    kvt_sink_destroy(ev.sink);
    return (double)ev.bytes / (double)ev.elapsed_us / 1e3;
}

/* ---- ucx_perftest ---- */

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        die("no port");
    close(fd);
    return ntohs(a.sin_port);
}

static void end_child(pid_t pid, int in, int out)
{
    close(in);
    close(out);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* GB/s by ucx_perftest; 0: it is not installed or said nothing. */
static double perftest(const char *tls, uint64_t page)
{
    char port[16], size[32], line[512] = "";
    int in[2], out[2];
    snprintf(port, sizeof port, "%d", free_port());
    snprintf(size, sizeof size, "%llu", (unsigned long long)page);
    char iterations[32];
    snprintf(iterations, sizeof iterations, "%llu", (unsigned long long)((512ull << 20) / page));
    setenv("UCX_TLS", tls, 1); /* no thread of ours runs now, and ports read names of their own */
    char *server[] = {"ucx_perftest", "-t", "ucp_am_bw", "-p", port, NULL};
    char *client[] = {"ucx_perftest", "127.0.0.1", "-t", "ucp_am_bw", "-s", size, "-n", iterations,
                      "-w",           "50",        "-f", "-v",        "-p", port, NULL};
    pid_t s = spawn(server, &in[0], &out[0]);
    kvs_sleep_us(300000);
    pid_t c = spawn(client, &in[1], &out[1]);
    unsetenv("UCX_TLS");
    FILE *f = fdopen(dup(out[1]), "r");
    double mib = 0;
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *at = line;
        for (int field = 0; at != NULL && field < 5; field++) /* iterations, 3 latencies, average, overall */
            at = (at = strchr(at, ',')) == NULL ? NULL : at + 1;
        if (at != NULL && *at >= '0' && *at <= '9')
            mib = strtod(at, NULL);
    }
    if (f != NULL)
        fclose(f);
    end_child(c, in[1], out[1]);
    end_child(s, in[0], out[0]);
    return mib * 1048576 / 1e9;
}

static void bench_lane(const char *lane, const char *tls, const struct options *o, char *self)
{
    static const uint64_t page[] = {65536, 262144, 1048576};
    char memory[16], window[16];
    double best[3], median[3];
    struct end e;
    struct address mine, theirs;
    int in, out;
    bool near = strcmp(lane, "near") == 0;
    snprintf(memory, sizeof memory, "%u", o->memory_mib);
    snprintf(window, sizeof window, "%u", o->window);
    char *argv[] = {self, "--source", (char *)lane, "--memory", memory, "--window", window, NULL};
    pid_t pid = spawn(argv, &in, &out);
    end_open(&e, SINK_EPOCH, o, near ? KVT_LANE_NEAR : KVT_LANE_TCP, &mine);
    if (!get(out, &theirs, sizeof theirs))
        die("the source did not start");
    put(in, &mine, sizeof mine);
    check(kvt_peer_connect(e.port, 0, SOURCE_EPOCH, theirs.data, theirs.bytes), "connect");
    const char *transport = next(&e, KVT_EV_UP).transport;
    for (uint32_t k = 0; k < 3; k++) {
        double rate[REPEAT_MAX];
        for (uint32_t i = 0; i < o->repeat; i++)
            rate[i] = transfer(&e, in, out, 1 + k * REPEAT_MAX + i, page[k]);
        qsort(rate, o->repeat, sizeof *rate, by_value);
        best[k] = rate[o->repeat - 1];
        median[k] = rate[o->repeat / 2];
    }
    end_child(pid, in, out);
    kvt_region_destroy(e.port, &e.region);
    kvt_port_destroy(e.port);
    sem_destroy(&e.woken);
    for (uint32_t k = 0; k < 3; k++) {
        double mark = perftest(tls, page[k]);
        if (o->json)
            printf(
                "{\"lane\":\"%s\",\"transport\":\"%s\",\"page_bytes\":%llu,\"gb_per_s\":%.3f,\"median_gb_per_s\":%.3f,"
                "\"ucx_perftest_gb_per_s\":%.3f}\n",
                lane, transport, (unsigned long long)page[k], best[k], median[k], mark);
        else
            printf("%-5s %-9s %5llu KiB   %6.2f   %6.2f   %12.2f\n", lane, transport, (unsigned long long)page[k] >> 10,
                   best[k], median[k], mark);
        fflush(stdout);
    }
}

static uint32_t number(const char *name, const char *text, uint32_t least, uint32_t most)
{
    char *end = NULL;
    unsigned long v = text == NULL ? 0 : strtoul(text, &end, 10);
    if (text == NULL || end == text || *end != '\0' || v < least || v > most) {
        fprintf(stderr, "transfer_bench: %s needs a number from %u to %u\n", name, least, most);
        exit(2);
    }
    return (uint32_t)v;
}

int main(int argc, char **argv)
{
    struct options o = {.memory_mib = 256, .repeat = 7, .window = 8};
    const char *source = NULL;
    char self[PATH_MAX];
    kvt_prepare_process(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--json") == 0)
            o.json = true;
        else if (strcmp(argv[i], "--memory") == 0)
            o.memory_mib = number(argv[i++], value, 8, 65536);
        else if (strcmp(argv[i], "--repeat") == 0)
            o.repeat = number(argv[i++], value, 1, REPEAT_MAX);
        else if (strcmp(argv[i], "--window") == 0)
            o.window = number(argv[i++], value, 4, 16);
        else if (strcmp(argv[i], "--source") == 0 && value != NULL)
            source = argv[++i];
        else {
            fprintf(stderr, "usage: transfer_bench [--memory MIB] [--repeat N] [--window N] [--json]\n");
            return 2;
        }
    }
    if (source != NULL)
        return run_source(source, &o);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        die("no /proc");
    self[n] = '\0';
    if (!o.json)
        printf("KV transfer, %u MiB a transfer, window %u, GB/s\nlane  transport page        best   median   "
               "ucx_perftest\n",
               o.memory_mib, o.window);
    bench_lane("near", "cma,tcp,self", &o, self);
    bench_lane("tcp", "tcp,self", &o, self);
    return 0;
}
