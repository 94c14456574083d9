/* etcd_server.c - see etcd_server.h. Ports stay bound here, with nobody listening, while etcd listens there, dies and is started again (Go
 * shares them, by SO_REUSEADDR): the kernel gives them to nobody else.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "etcd_server.h"
#include "sys/clock.h"
#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_US 60000000u

bool etcd_is_there(void)
{
    const char *path = getenv("PATH");
    char at[512];
    while (path != NULL && *path != '\0') {
        size_t n = strcspn(path, ":");
        (void)snprintf(at, sizeof at, "%.*s/etcd", (int)n, path);
        if (access(at, X_OK) == 0) {
            return true;
        }
        path += n + (path[n] == ':');
    }
    return false;
}

static uint16_t held_port(int *held_out)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    assert_true(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    assert_true(bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *held_out = fd;
    return ntohs(a.sin_port);
}

static void exec_etcd(struct etcd_servers *s, int node)
{
    char name[16], data[128], client[64], peer[64], cluster[256] = "", log[128];
    size_t used = 0;
    for (int i = 0; i < s->nodes; i++) {
        used += (size_t)snprintf(cluster + used, sizeof cluster - used, "%sn%d=http://127.0.0.1:%u", i > 0 ? "," : "",
                                 i, s->peer_port[i]);
    }
    (void)snprintf(name, sizeof name, "n%d", node);
    (void)snprintf(data, sizeof data, "%s/n%d", s->dir, node);
    (void)snprintf(log, sizeof log, "%s/n%d.log", s->dir, node);
    (void)snprintf(client, sizeof client, "http://127.0.0.1:%u", s->port[node]);
    (void)snprintf(peer, sizeof peer, "http://127.0.0.1:%u", s->peer_port[node]);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    (void)dup2(fd, 1);
    (void)dup2(fd, 2);
    execlp("etcd", "etcd", "--name", name, "--data-dir", data, "--listen-client-urls", client,
           "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
           "--initial-cluster", cluster, "--heartbeat-interval", "100", "--election-timeout", "600", "--logger", "zap",
           "--log-outputs", "stderr", "--log-level", "warn", (char *)NULL);
    _exit(127);
}

void etcd_run(struct etcd_servers *s, int node)
{
    assert_int_equal(s->pid[node], 0);
    pid_t parent = getpid();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        sigset_t none;
        (void)sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(127);
        }
        exec_etcd(s, node);
    }
    s->pid[node] = pid;
}

void etcd_kill(struct etcd_servers *s, int node)
{
    if (s->pid[node] > 0) {
        (void)kill(s->pid[node], SIGKILL);
        (void)waitpid(s->pid[node], NULL, 0);
        s->pid[node] = 0;
    }
}

void etcd_signal(struct etcd_servers *s, int node, int signal)
{
    assert_true(s->pid[node] > 0);
    assert_int_equal(kill(s->pid[node], signal), 0);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

void etcd_wipe(struct etcd_servers *s, int node)
{
    char data[128];
    assert_int_equal(s->pid[node], 0);
    (void)snprintf(data, sizeof data, "%s/n%d", s->dir, node);
    (void)nftw(data, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

struct answer {
    char *out;
    size_t cap, len;
};

static size_t take(char *bytes, size_t size, size_t count, void *user)
{
    struct answer *a = user;
    size_t n = size * count, room = a->cap - a->len - 1, kept = n < room ? n : room;
    memcpy(a->out + a->len, bytes, kept);
    a->len += kept;
    a->out[a->len] = '\0';
    return n;
}

bool etcd_post(struct etcd_servers *s, int node, const char *path, const char *body, char *out, size_t cap,
               long limit_ms)
{
    char url[128];
    long http = 0;
    struct answer a = {out, cap, 0};
    CURL *c = curl_easy_init();
    assert_non_null(c);
    out[0] = '\0';
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u%s", s->port[node], path);
    (void)curl_easy_setopt(c, CURLOPT_URL, url);
    (void)curl_easy_setopt(c, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    (void)curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, limit_ms);
    (void)curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take);
    (void)curl_easy_setopt(c, CURLOPT_WRITEDATA, &a);
    CURLcode r = curl_easy_perform(c);
    (void)curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &http);
    curl_easy_cleanup(c);
    return r == CURLE_OK && http == 200;
}

static bool serves(struct etcd_servers *s, int node)
{
    char out[1024];
    return etcd_post(s, node, "/v3/kv/put", "{\"key\":\"cHJvYmU=\",\"value\":\"eA==\"}", out, sizeof out, 2000);
}

static bool wait_some(struct etcd_servers *s, uint64_t limit_us)
{
    uint64_t end = kvs_now_us() + limit_us;
    for (int i = 0; i < s->nodes; i++) {
        while (s->pid[i] > 0 && !serves(s, i)) {
            if (kvs_now_us() >= end || waitpid(s->pid[i], NULL, WNOHANG) != 0) {
                return false;
            }
            kvs_sleep_us(20000);
        }
    }
    return true;
}

void etcd_wait(struct etcd_servers *s)
{
    if (!wait_some(s, WAIT_US)) {
        fail_msg("etcd did not begin to serve within a minute; logs are in %s", s->dir);
    }
}

static long number_after(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    at = at != NULL ? at + strlen(name) : "";
    at += strspn(at, "\":");
    return strtol(at, NULL, 10);
}

static void string_after(const char *text, const char *name, char *out, size_t cap)
{
    const char *at = strstr(text, name);
    at = at != NULL ? at + strlen(name) : "";
    at += strspn(at, "\":");
    (void)snprintf(out, cap, "%.*s", (int)strcspn(at, "\""), at);
}

int etcd_leader(struct etcd_servers *s)
{
    char out[1024], me[32], leader[32];
    for (int i = 0; i < s->nodes; i++) {
        if (s->pid[i] > 0 && etcd_post(s, i, "/v3/maintenance/status", "{}", out, sizeof out, 1000)) {
            string_after(out, "\"member_id\"", me, sizeof me);
            string_after(out, "\"leader\"", leader, sizeof leader);
            if (me[0] != '\0' && strcmp(me, leader) == 0) {
                return i;
            }
        }
    }
    return -1;
}

long etcd_revision(struct etcd_servers *s)
{
    char out[1024];
    assert_true(etcd_post(s, 0, "/v3/kv/range", "{\"key\":\"cHJvYmU=\"}", out, sizeof out, 5000));
    return number_after(out, "\"revision\"");
}

void etcd_compact(struct etcd_servers *s, long revision)
{
    char out[1024], body[96];
    (void)snprintf(body, sizeof body, "{\"revision\":\"%ld\",\"physical\":true}", revision);
    assert_true(etcd_post(s, 0, "/v3/kv/compaction", body, out, sizeof out, 10000));
}

void etcd_start(struct etcd_servers *s, int nodes)
{
    memset(s, 0, sizeof *s);
    s->nodes = nodes;
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/kvs-etcd-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    size_t used = (size_t)snprintf(s->url, sizeof s->url, "etcd://");
    for (int i = 0; i < nodes; i++) {
        s->port[i] = held_port(&s->held[2 * i]);
        s->peer_port[i] = held_port(&s->held[2 * i + 1]);
        used += (size_t)snprintf(s->url + used, sizeof s->url - used, "%s127.0.0.1:%u", i > 0 ? "," : "", s->port[i]);
    }
    for (int i = 0; i < nodes; i++) {
        etcd_run(s, i);
    }
    etcd_wait(s);
}

void etcd_stop(struct etcd_servers *s)
{
    for (int i = 0; i < s->nodes; i++) {
        etcd_kill(s, i);
        (void)close(s->held[2 * i]);
        (void)close(s->held[2 * i + 1]);
    }
    s->nodes = 0;
    (void)nftw(s->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
