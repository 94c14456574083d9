/* model_list.c - `kvasir model list`: the models that can be pulled and whether they are here, other GGUF files in the cache folder, and with
 * --url the models that a router serves.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/http_client.h"
#include "cli/model_table.h"
#include "model/parts.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct list_config {
    char url[256];
};
static const struct kvs_config_row rows[] = {
    {"list.url", "url", KVS_CFG_STRING, "", 0, 256, NULL, "a router's HOST:PORT: list what it serves",
     offsetof(struct list_config, url)},
};

static void print_known(void)
{
    struct kvs_error err = {0};
    char path[CLI_PATH_MAX];
    struct stat st;
    for (size_t i = 0; cli_model_at(i); i++) {
        const struct cli_model_entry *e = cli_model_at(i);
        bool here = cli_model_path(e, path, sizeof path, &err) == KVS_OK && stat(path, &st) == 0;
        bool whole = here && (uint64_t)st.st_size == e->bytes;
        printf("%-24s %8.1f MB  %s\n", e->name, (double)e->bytes / 1e6,
               whole  ? path
               : here ? "not whole; kvasir model pull fetches it again"
                      : "not here; kvasir model pull fetches it");
    }
}

static bool is_known(const char *file)
{
    for (size_t i = 0; cli_model_at(i); i++)
        if (!strcmp(cli_model_at(i)->file, file))
            return true;
    return false;
}

/* A split model is one line: its first part's, with the size of all that are there. */
static void print_other(char *path, uint64_t bytes)
{
    uint32_t no, count, missing = 0;
    char note[48] = "";
    if (mdl_part_name(path, &no, &count, NULL) && count <= MDL_PARTS_MAX) {
        bytes = 0;
        for (uint32_t p = 1; p <= count; p++) {
            struct stat st;
            mdl_part_rename(path, p);
            bool here = stat(path, &st) == 0;
            if (here && p < no)
                return; /* said there */
            bytes += here ? (uint64_t)st.st_size : 0;
            missing = here || missing ? missing : p;
        }
        mdl_part_rename(path, 1);
        if (missing)
            (void)kvs_format(note, sizeof note, "  (part %u of %u is missing)", missing, count);
        else
            (void)kvs_format(note, sizeof note, "  (%u parts)", count);
    }
    printf("%-24s %8.1f MB  %s%s\n", "-", (double)bytes / 1e6, path, note);
}

static kvs_status print_others(struct kvs_error *err)
{
    char dir[CLI_PATH_MAX], folder[CLI_PATH_MAX + 16], path[2 * CLI_PATH_MAX];
    struct stat st;
    kvs_status s = cli_cache_dir(dir, sizeof dir, err);
    if (s != KVS_OK)
        return s;
    (void)kvs_format(folder, sizeof folder, "%s/models", dir);
    DIR *d = opendir(folder);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        size_t n = strlen(e->d_name);
        (void)kvs_format(path, sizeof path, "%s/%s", folder, e->d_name);
        if (n > 5 && !strcmp(e->d_name + n - 5, ".gguf") && !is_known(e->d_name) && stat(path, &st) == 0)
            print_other(path, (uint64_t)st.st_size);
    }
    if (d)
        closedir(d);
    return KVS_OK;
}

static kvs_status print_served(const char *text, struct kvs_error *err)
{
    char base[300], url[320], why[256];
    struct kvs_buf body;
    const json_t *m;
    size_t i;
    kvs_buf_init(&body, 1u << 20);
    kvs_status s = cli_base_url(text, base, sizeof base, err);
    (void)kvs_format(url, sizeof url, "%s/v1/models", base);
    struct cli_http h = {.url = url, .timeout_ms = 5000, .connect_ms = 5000, .out = &body};
    if (s == KVS_OK)
        s = cli_http(&h, err);
    if (s == KVS_OK && h.status != 200) {
        cli_http_error_text(&h, &body, why, sizeof why);
        s = kvs_fail(err, KVS_PEER_REFUSED, "%s", why);
    }
    json_t *o = s == KVS_OK ? json_loadb(kvs_buf_text(&body), body.len, 0, NULL) : NULL;
    json_array_foreach(json_object_get(o, "data"), i, m)
    {
        const char *id = json_string_value(json_object_get(m, "id"));
        puts(id ? id : "-");
    }
    if (s == KVS_OK && json_array_size(json_object_get(o, "data")) == 0)
        puts("no model is served yet");
    json_decref(o);
    kvs_buf_fini(&body);
    return s;
}

int cli_model_list(int argc, char **argv)
{
    struct list_config c = {0};
    struct kvs_error err = {0};
    static const struct cli_usage usage = {.text = "usage: kvasir model list [--url HOST:PORT]"};
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    kvs_status s = KVS_OK;
    if (c.url[0]) {
        s = print_served(c.url, &err);
    } else {
        print_known();
        s = print_others(&err);
    }
    return s == KVS_OK ? 0 : cli_failed(&err);
}
