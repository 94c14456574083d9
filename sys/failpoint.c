/* failpoint.c - the table of failpoints that KVASIR_FAILPOINTS_SET (or a test) filled, and what happens at a hit.
 * Only in builds with KVASIR_FAILPOINTS. The text is read once, at the first hit; text that cannot be understood ends the
 * process, since a test whose fault is never injected would pass in vain.
 * Hits of one name are counted under a lock: points sit on paths that cost more than a lock.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sys/failpoint.h"

#ifdef KVASIR_FAILPOINTS

#include "base/error.h"
#include "sys/clock.h"
#include "sys/log.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POINTS_MAX = 32, NAME_MAX_BYTES = 64, EXIT_BAD_TEXT = 78, EXIT_FIRED = 70 };

enum action { ACT_KILL, ACT_STOP, ACT_EXIT, ACT_ERROR, ACT_DELAY };

struct point {
    char name[NAME_MAX_BYTES];
    enum action action;
    uint64_t delay_ms;
    uint64_t at; /* fires at this hit */
    bool onward; /* and at all later ones */
    uint64_t hits, fired;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct point points[POINTS_MAX];
static size_t point_count;
static bool ready;

static bool parse_number(const char *text, size_t n, uint64_t *out)
{
    uint64_t v = 0;
    if (n == 0 || n > 9) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        v = v * 10 + (uint64_t)(text[i] - '0');
    }
    *out = v;
    return true;
}

static bool parse_action(const char *text, size_t n, struct point *p)
{
    static const char *const names[] = {"kill", "stop", "exit", "error"};
    for (size_t i = 0; i < 4; i++) {
        if (strlen(names[i]) == n && memcmp(text, names[i], n) == 0) {
            p->action = (enum action)i;
            return true;
        }
    }
    p->action = ACT_DELAY;
    return n > 6 && memcmp(text, "delay:", 6) == 0 && parse_number(text + 6, n - 6, &p->delay_ms);
}

/* name=action[@k[+]] */
static bool parse_point(const char *text, size_t n, struct point *p)
{
    *p = (struct point){.at = 1};
    const char *equal = memchr(text, '=', n);
    if (equal == NULL || equal == text || (size_t)(equal - text) >= sizeof p->name) {
        return false;
    }
    memcpy(p->name, text, (size_t)(equal - text));
    const char *action = equal + 1;
    const char *end = text + n;
    const char *at = memchr(action, '@', (size_t)(end - action));
    if (at != NULL) {
        const char *number_end = end;
        if (end[-1] == '+') {
            p->onward = true;
            number_end--;
        }
        if (number_end <= at || !parse_number(at + 1, (size_t)(number_end - at - 1), &p->at) || p->at == 0) {
            return false;
        }
    }
    return parse_action(action, (size_t)((at != NULL ? at : end) - action), p);
}

static kvs_status set_locked(const char *spec, struct kvs_error *err)
{
    point_count = 0;
    ready = true;
    while (*spec != '\0') {
        size_t n = strcspn(spec, ";");
        if (n > 0) {
            if (point_count == POINTS_MAX || !parse_point(spec, n, &points[point_count])) {
                point_count = 0;
                return kvs_fail(err, KVS_SELF_CONFIG,
                                "failpoint '%.*s' is not understood: name=kill|stop|exit|error|delay:MS[@k[+]], at most %d",
                                (int)n, spec, POINTS_MAX);
            }
            point_count++;
        }
        spec += n + (spec[n] == ';' ? 1 : 0);
    }
    return KVS_OK;
}

kvs_status kvs_failpoint_set(const char *spec, struct kvs_error *err)
{
    pthread_mutex_lock(&lock);
    kvs_status st = set_locked(spec, err);
    pthread_mutex_unlock(&lock);
    return st;
}

static void ready_locked(void)
{
    if (ready) {
        return;
    }
    struct kvs_error err;
    const char *spec = getenv("KVASIR_FAILPOINTS_SET");
    if (set_locked(spec != NULL ? spec : "", &err) != KVS_OK) {
        KVS_ERROR("bad failpoint text", "error=\"%s\"", err.text);
        _exit(EXIT_BAD_TEXT);
    }
}

static bool act(const struct point *p)
{
    KVS_WARN("failpoint fired", "name=%s hit=%llu", p->name, (unsigned long long)p->hits);
    switch (p->action) {
    case ACT_KILL: (void)raise(SIGKILL); return false;
    case ACT_STOP: (void)raise(SIGSTOP); return false;
    case ACT_EXIT: _exit(EXIT_FIRED);
    case ACT_ERROR: return true;
    case ACT_DELAY: kvs_sleep_us(p->delay_ms * 1000); return false;
    }
    return false;
}

bool kvs_failpoint_hit(const char *name)
{
    struct point fire[POINTS_MAX];
    size_t fires = 0;
    pthread_mutex_lock(&lock);
    ready_locked();
    for (size_t i = 0; i < point_count; i++) {
        struct point *p = &points[i];
        if (strcmp(p->name, name) == 0) {
            p->hits++;
            if (p->hits == p->at || (p->onward && p->hits > p->at)) {
                p->fired++;
                fire[fires++] = *p;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    bool error = false;
    for (size_t i = 0; i < fires; i++) {
        error = act(&fire[i]) || error;
    }
    return error;
}

uint64_t kvs_failpoint_fired(const char *name)
{
    uint64_t n = 0;
    pthread_mutex_lock(&lock);
    ready_locked();
    for (size_t i = 0; i < point_count; i++) {
        n += strcmp(points[i].name, name) == 0 ? points[i].fired : 0;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

#endif
