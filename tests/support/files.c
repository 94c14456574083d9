/* files.c - see files.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool tst_file_exists(const char *path)
{
    return access(path, R_OK) == 0;
}

bool tst_model_path(const char *variable, const char *file, char *out, size_t cap)
{
    const char *path = getenv(variable), *home = getenv("HOME");
    if (path != NULL && path[0] != '\0')
        snprintf(out, cap, "%s", path);
    else if (home != NULL)
        snprintf(out, cap, "%s/.cache/kvasir/models/%s", home, file);
    else
        return false;
    return tst_file_exists(out);
}

bool tst_smollm2_path(char *out, size_t cap)
{
    return tst_model_path("KVASIR_TEST_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf", out, cap);
}

uint8_t *tst_file_read(const char *path, size_t max, size_t *size_out)
{
    struct stat st;
    uint8_t *bytes = NULL;
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return NULL;
    if (fstat(fileno(f), &st) == 0 && st.st_size > 0) {
        size_t n = max != 0 && max < (size_t)st.st_size ? max : (size_t)st.st_size;
        bytes = malloc(n);
        if (bytes != NULL && fread(bytes, 1, n, f) != n) {
            free(bytes);
            bytes = NULL;
        }
        *size_out = n;
    }
    fclose(f);
    return bytes;
}

int tst_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return n;
}
