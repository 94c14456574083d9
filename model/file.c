/* file.c - maps a model file, and keeps the process alive when the file shrinks under the mapping.
 *
 * Reading a mapped page that the file no longer has raises SIGBUS in the reading thread, which may be any thread of the
 * packing team. Jumping out of there would leave locks and half-written tables behind, so the handler does not jump: it
 * puts a page of zeros in place of the missing one, marks the mapping as damaged, and returns. The read goes on, and
 * mdl_file_check turns the mark into an error before anything is made of the result.
 *
 * The handler looks only at a fixed table of atomics and calls mmap, a plain system call. A SIGBUS outside of our
 * mappings goes to the handler that was there before, or to the default, which ends the process as it should.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_MAX MDL_FILES_MAX

static struct {
    atomic_uintptr_t begin, end; /* begin 0: free; set last, cleared first */
    atomic_bool damaged;
} files[FILES_MAX];
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER; /* open and close; the handler takes no lock */
static struct sigaction previous;
static bool handler_installed;
static uintptr_t page_size;

static void on_sigbus(int signo, siginfo_t *info, void *context)
{
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        uintptr_t begin = atomic_load(&files[i].begin);
        if (begin == 0 || at < begin || at >= atomic_load(&files[i].end))
            continue;
        void *page = (void *)(at & ~(page_size - 1));
        atomic_store(&files[i].damaged, true);
        if (mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            break;
        errno = saved;
        return;
    }
    errno = saved;
    if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != NULL) {
        previous.sa_sigaction(signo, info, context);
        return;
    }
    if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(signo);
        return;
    }
    (void)signal(SIGBUS, SIG_DFL); /* the read is repeated and ends the process */
}

static kvs_status install_handler(struct kvs_error *err)
{
    if (handler_installed)
        return KVS_OK;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO;
    (void)sigemptyset(&action.sa_mask);
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (sigaction(SIGBUS, &action, &previous) != 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot install the handler for SIGBUS: %s", strerror(errno));
    handler_installed = true;
    return KVS_OK;
}

static kvs_status register_mapping(struct mdl_file *f, struct kvs_error *err)
{
    kvs_status s;
    pthread_mutex_lock(&files_lock);
    s = install_handler(err);
    for (uint32_t i = 0; s == KVS_OK && f->slot == 0 && i < FILES_MAX; i++) {
        if (atomic_load(&files[i].begin) != 0)
            continue;
        atomic_store(&files[i].damaged, false);
        atomic_store(&files[i].end, (uintptr_t)f->bytes + f->size);
        atomic_store(&files[i].begin, (uintptr_t)f->bytes);
        f->slot = i + 1;
    }
    pthread_mutex_unlock(&files_lock);
    if (s == KVS_OK && f->slot == 0)
        return kvs_fail(err, KVS_BUSY_FULL, "%u model files are open already", FILES_MAX);
    return s;
}

static kvs_status map_file(const char *path, struct mdl_file *f, struct kvs_error *err)
{
    struct stat st;
    /* O_NONBLOCK: opening a pipe must not wait for a writer. */
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0)
        return kvs_fail(err, KVS_SELF_MODEL, "cannot open model file %.160s: %s", path, strerror(errno));
    if (fstat(f->fd, &st) != 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot read the size of %.160s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return kvs_fail(err, KVS_SELF_MODEL, "model file %.160s is not a regular file", path);
    if (st.st_size <= 0)
        return kvs_fail(err, KVS_SELF_MODEL, "model file %.160s is empty", path);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (p == MAP_FAILED)
        return kvs_fail(err, KVS_SELF_NOMEM, "cannot map model file %.160s: %s", path, strerror(errno));
    f->bytes = p;
    f->size = (size_t)st.st_size;
    f->mtime_s = st.st_mtim.tv_sec;
    f->mtime_ns = st.st_mtim.tv_nsec;
    return KVS_OK;
}

kvs_status mdl_file_open(const char *path, struct mdl_file *out, struct kvs_error *err)
{
    struct mdl_file f;
    memset(&f, 0, sizeof f);
    kvs_status s = map_file(path, &f, err);
    if (s == KVS_OK)
        s = register_mapping(&f, err);
    if (s != KVS_OK) {
        if (f.bytes != NULL)
            (void)munmap((void *)(uintptr_t)f.bytes, f.size);
        if (f.fd >= 0)
            (void)close(f.fd);
        return s;
    }
    *out = f;
    return KVS_OK;
}

kvs_status mdl_file_check(const struct mdl_file *f, struct kvs_error *err)
{
    struct stat st;
    KVS_ASSERT(f->slot >= 1 && f->slot <= FILES_MAX);
    if (atomic_load(&files[f->slot - 1].damaged))
        return kvs_fail(err, KVS_SELF_MODEL, "the model file was cut short, or its disk failed, while it was read");
    if (fstat(f->fd, &st) != 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot read the size of the model file: %s", strerror(errno));
    if ((uint64_t)st.st_size != f->size || st.st_mtim.tv_sec != f->mtime_s || st.st_mtim.tv_nsec != f->mtime_ns)
        return kvs_fail(err, KVS_SELF_MODEL,
                        "the model file was changed while it was in use: start again with a stable copy");
    return KVS_OK;
}

void mdl_file_done(const struct mdl_file *f, const uint8_t *bytes, size_t count)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)bytes, end = begin + count, base = (uintptr_t)f->bytes;
    KVS_ASSERT(f->slot != 0 && begin >= base && count <= f->size && end <= base + f->size);
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (end > begin)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED); /* advice: without it they stay until the file is closed */
}

void mdl_file_close(struct mdl_file *f)
{
    if (f->slot == 0)
        return;
    pthread_mutex_lock(&files_lock);
    atomic_store(&files[f->slot - 1].begin, 0);
    pthread_mutex_unlock(&files_lock);
    (void)munmap((void *)(uintptr_t)f->bytes, f->size);
    (void)close(f->fd);
    memset(f, 0, sizeof *f);
}
