/* secret.c - see secret.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sys/secret.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_visible(const char *text, size_t n)
{
    bool good = true;
    for (size_t i = 0; i < n; i++)
        good = good && text[i] > 0x20 && text[i] < 0x7f;
    return good;
}

static kvs_status take(const char *text, size_t n, const char *from, char *out, struct kvs_error *err)
{
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) != NULL)
        n--;
    if (n < KVS_SECRET_MIN || n >= KVS_SECRET_MAX || !is_visible(text, n))
        return kvs_fail(err, KVS_SELF_CONFIG, "the key in %.200s is not of %d to %d visible ASCII characters; make one with: openssl rand -hex 32", from,
                        KVS_SECRET_MIN, KVS_SECRET_MAX - 1);
    memcpy(out, text, n);
    out[n] = 0;
    return KVS_OK;
}

kvs_status kvs_secret_load(const char *file, char out[KVS_SECRET_MAX], struct kvs_error *err)
{
    char text[2 * KVS_SECRET_MAX];
    const char *given = getenv("KVASIR_AUTH");
    out[0] = 0;
    if (file == NULL || file[0] == 0)
        return given != NULL && given[0] != 0 ? take(given, strlen(given), "$KVASIR_AUTH", out, err) : KVS_OK;
    FILE *f = fopen(file, "re");
    if (f == NULL)
        return kvs_fail(err, KVS_SELF_CONFIG, "--auth-file %.200s cannot be read: %s", file, strerror(errno));
    size_t n = fread(text, 1, sizeof text, f);
    (void)fclose(f);
    return take(text, n, file, out, err);
}

bool kvs_secret_equal(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    unsigned differs = na != nb || na == 0;
    for (size_t i = 0; i < KVS_SECRET_MAX; i++)
        differs |= (unsigned char)((i < na ? a[i] : 0) ^ (i < nb ? b[i] : 0));
    return differs == 0;
}
