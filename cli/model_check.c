/* model_check.c - is a cached file what the table says? Size and SHA-256 decide. Hashing a large file at each start would cost seconds, so a
 * note beside the file ("FILE.verified") remembers which bytes were found right: the hash, the size and the time of the file's last change.
 * A note that does not fit, or none, means that the file is hashed again. The note is a convenience: where it cannot be written
 * (a read-only cache) the file is hashed each time. `kvasir model pull` and `kvasir doctor` hash always, whatever the note says.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/model_table.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool same_time(const struct stat *a, const struct stat *b)
{
    return a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static kvs_status check_size(const struct cli_model_entry *e, const struct stat *st, struct kvs_error *err)
{
    if ((uint64_t)st->st_size != e->bytes)
        return kvs_fail(err, KVS_SELF_MODEL, "the file of %s is not whole: it has %llu bytes, not %llu; run: kvasir model pull %s",
                        e->title, (unsigned long long)st->st_size, (unsigned long long)e->bytes, e->name);
    return KVS_OK;
}

static bool hash(FILE *f, unsigned char digest[EVP_MAX_MD_SIZE])
{
    static unsigned char chunk[1u << 16];
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned int len = 0;
    bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;
    for (size_t n; ok && (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
        ok = EVP_DigestUpdate(md, chunk, n) == 1;
    ok = ok && !ferror(f) && EVP_DigestFinal_ex(md, digest, &len) == 1 && len == 32;
    EVP_MD_CTX_free(md);
    return ok;
}

/* What was hashed is what the open file was before and after: a name may meanwhile stand for another file. */
static kvs_status check_open(const struct cli_model_entry *e, FILE *f, const char *path, struct stat *seen, struct kvs_error *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char hex[65];
    struct stat after;
    errno = 0;
    if (fstat(fileno(f), seen) != 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot read '%.160s': %s", path, strerror(errno));
    kvs_status s = check_size(e, seen, err);
    if (s != KVS_OK)
        return s;
    if (!hash(f, digest) || fstat(fileno(f), &after) != 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot read '%.160s': %s", path, strerror(errno));
    if (after.st_size != seen->st_size || !same_time(&after, seen))
        return kvs_fail(err, KVS_SELF_MODEL, "the file of %s was changed while it was read; try again when it is whole", e->title);
    for (size_t i = 0; i < 32; i++)
        (void)kvs_format(hex + 2 * i, 3, "%02x", digest[i]);
    if (strcmp(hex, e->sha256) != 0)
        return kvs_fail(err, KVS_SELF_MODEL, "the file of %s is damaged: SHA-256 %.16s..., not %.16s...; run: kvasir model pull %s",
                        e->title, hex, e->sha256, e->name);
    return KVS_OK;
}

kvs_status cli_model_check(const struct cli_model_entry *e, const char *path, struct stat *seen_out, struct kvs_error *err)
{
    FILE *f = fopen(path, "rbe");
    if (!f)
        return kvs_fail(err, KVS_SELF_IO, "cannot read '%.160s': %s", path, strerror(errno));
    kvs_status s = check_open(e, f, path, seen_out, err);
    fclose(f);
    return s;
}

static void note_text(const struct cli_model_entry *e, const struct stat *st, char *out, size_t cap)
{
    (void)kvs_format(out, cap, "%s %llu %lld.%09ld\n", e->sha256, (unsigned long long)st->st_size, (long long)st->st_mtim.tv_sec,
                     st->st_mtim.tv_nsec);
}

static bool note_fits(const struct cli_model_entry *e, const char *path, const struct stat *st)
{
    char name[CLI_PATH_MAX + 16], want[160], have[160] = "";
    (void)kvs_format(name, sizeof name, "%s.verified", path);
    note_text(e, st, want, sizeof want);
    FILE *f = fopen(name, "re");
    bool fits = f && fgets(have, sizeof have, f) && strcmp(have, want) == 0;
    if (f)
        fclose(f);
    return fits;
}

void cli_model_remember(const struct cli_model_entry *e, const char *path, const struct stat *seen)
{
    char name[CLI_PATH_MAX + 16], fresh[CLI_PATH_MAX + 48], text[160];
    if (note_fits(e, path, seen))
        return;
    (void)kvs_format(name, sizeof name, "%s.verified", path);
    (void)kvs_format(fresh, sizeof fresh, "%s.%ld", name, (long)getpid());
    note_text(e, seen, text, sizeof text);
    FILE *f = fopen(fresh, "we");
    if (!f)
        return;
    bool ok = fputs(text, f) >= 0;
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(fresh, name) != 0)
        (void)unlink(fresh);
}

kvs_status cli_model_trust(const struct cli_model_entry *e, const char *path, struct kvs_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot read '%.160s': %s", path, strerror(errno));
    kvs_status s = check_size(e, &st, err);
    if (s != KVS_OK || note_fits(e, path, &st))
        return s;
    s = cli_model_check(e, path, &st, err);
    if (s == KVS_OK)
        cli_model_remember(e, path, &st);
    return s;
}
