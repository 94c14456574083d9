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

kvs_status cli_sha256_file(const char *path, char hex_out[65], struct kvs_error *err)
{
    FILE *f = fopen(path, "rbe");
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int len = 0;
    static unsigned char chunk[1u << 16];
    bool ok = f && md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;
    for (size_t n; ok && (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
        ok = EVP_DigestUpdate(md, chunk, n) == 1;
    ok = ok && !ferror(f) && EVP_DigestFinal_ex(md, digest, &len) == 1 && len == 32;
    int why = errno;
    EVP_MD_CTX_free(md);
    if (f)
        fclose(f);
    if (!ok)
        return kvs_fail(err, KVS_SELF_IO, "cannot read '%.160s': %s", path, strerror(why));
    for (size_t i = 0; i < 32; i++)
        (void)kvs_format(hex_out + 2 * i, 3, "%02x", digest[i]);
    return KVS_OK;
}

static kvs_status check_size(const struct cli_model_entry *e, const char *path, struct stat *st, struct kvs_error *err)
{
    if (stat(path, st) != 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot read '%.160s': %s", path, strerror(errno));
    if ((uint64_t)st->st_size != e->bytes)
        return kvs_fail(err, KVS_SELF_MODEL, "the file of %s is not whole: it has %llu bytes, not %llu; run: kvasir model pull %s",
                        e->title, (unsigned long long)st->st_size, (unsigned long long)e->bytes, e->name);
    return KVS_OK;
}

kvs_status cli_model_check(const struct cli_model_entry *e, const char *path, struct kvs_error *err)
{
    struct stat st;
    char hex[65];
    kvs_status s = check_size(e, path, &st, err);
    if (s == KVS_OK)
        s = cli_sha256_file(path, hex, err);
    if (s == KVS_OK && strcmp(hex, e->sha256) != 0)
        s = kvs_fail(err, KVS_SELF_MODEL, "the file of %s is damaged: SHA-256 %.16s..., not %.16s...; run: kvasir model pull %s",
                     e->title, hex, e->sha256, e->name);
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

void cli_model_remember(const struct cli_model_entry *e, const char *path)
{
    char name[CLI_PATH_MAX + 16], fresh[CLI_PATH_MAX + 48], text[160];
    struct stat st;
    if (stat(path, &st) != 0 || note_fits(e, path, &st))
        return;
    (void)kvs_format(name, sizeof name, "%s.verified", path);
    (void)kvs_format(fresh, sizeof fresh, "%s.%ld", name, (long)getpid());
    note_text(e, &st, text, sizeof text);
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
    kvs_status s = check_size(e, path, &st, err);
    if (s != KVS_OK || note_fits(e, path, &st))
        return s;
    s = cli_model_check(e, path, err);
    if (s == KVS_OK)
        cli_model_remember(e, path);
    return s;
}
