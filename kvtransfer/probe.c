/* probe.c - may these two processes read each other's memory? Asked before any endpoint exists.
 * process_vm_readv is what UCX's cma uses. It needs the same host, the same pid namespace and the same user; where any of these
 * differs UCX fails half-way or page by page, so both sides try it on a word of the other and then agree on near or tcp.
 * Where Yama restricts tracing to children, the process says that it may be read by any process of its user, which is the rule
 * on systems without Yama; without this two workers side by side could never use the near lane.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/port.h"

#include "sys/clock.h"
#include <ctype.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static uint64_t word; /* what the other side reads; set once, by the first probe */

static void read_boot_id(uint8_t out[16])
{
    char text[64];
    memset(out, 0, 16);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, text, sizeof text);
    close(fd);
    for (ssize_t i = 0, digit = 0; i < n && digit < 32; i++) {
        int c = tolower((unsigned char)text[i]);
        if (!isxdigit(c))
            continue;
        uint8_t v = (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        out[digit / 2] = (uint8_t)(out[digit / 2] << 4 | v);
        digit++;
    }
}

/* Whether /proc shows this process under the number it knows itself by. In a chroot with somebody else's /proc it does not, and UCX, which
 * looks a cma peer up there to see whether it lives, takes living peers for dead ones. */
static bool proc_is_ours(void)
{
    char text[24], want[24];
    ssize_t n = readlink("/proc/self", text, sizeof text - 1);
    if (n <= 0)
        return false;
    text[n] = '\0';
    kvs_format(want, sizeof want, "%ld", (long)getpid());
    return strcmp(text, want) == 0;
}

void kvt_probe_self(struct kvt_probe *out)
{
    struct stat st;
    KVS_ASSERT(out != NULL);
    memset(out, 0, sizeof *out);
    if (word == 0) {
        word = kvs_random_u64() | 1;
        (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* EINVAL without Yama */
    }
    read_boot_id(out->boot_id);
    out->pid_namespace = proc_is_ours() && stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
    out->uid = (uint32_t)getuid();
    out->pid = (uint32_t)getpid();
    out->address = (uint64_t)(uintptr_t)&word;
    out->value = word;
}

bool kvt_probe_try(const struct kvt_probe *peer)
{
    struct kvt_probe self;
    KVS_ASSERT(peer != NULL);
    kvt_probe_self(&self);
    if (memcmp(peer->boot_id, self.boot_id, sizeof self.boot_id) != 0 || peer->pid_namespace != self.pid_namespace ||
        peer->pid_namespace == 0 || peer->uid != self.uid || peer->pid == 0 || peer->pid > INT32_MAX ||
        peer->value == 0)
        return false;
    uint64_t seen = 0;
    struct iovec here = {&seen, sizeof seen}, there = {(void *)(uintptr_t)peer->address, sizeof seen};
    return process_vm_readv((pid_t)peer->pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof seen && seen == peer->value;
}
