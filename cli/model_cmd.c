/* model_cmd.c - `kvasir model pull NAME` and `kvasir model info FILE`.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "cli/model_table.h"
#include "model/card.h"
#include "model/model.h"
#include "model/template.h"
#include "model/tokenizer.h"

#include <stdio.h>
#include <string.h>

struct info_config {
    bool all;
};
static const struct kvs_config_row info_rows[] = {
    {"info.all", "all", KVS_CFG_BOOL, "false", 0, 0, NULL, "also list every metadata key and tensor",
     offsetof(struct info_config, all)},
};

static int pull(const char *name)
{
    struct kvs_error err = {0};
    const struct cli_model_entry *e = cli_model_find(name);
    if (!e) {
        char names[120];
        cli_model_names(names, sizeof names);
        (void)kvs_fail(&err, KVS_SELF_CONFIG, "there is no model '%.40s' to pull; known: %s", name, names);
        return cli_failed(&err);
    }
    char path[CLI_PATH_MAX];
    if (cli_model_pull(e, path, sizeof path, &err) != KVS_OK)
        return cli_failed(&err);
    puts(path);
    return 0;
}

static void print_text(const char *text, size_t n, size_t max)
{
    char line[512];
    (void)kvs_format(line, sizeof line, "%.*s", (int)(n < max ? n : max), text);
    kvs_utf8_clean(line, strlen(line));
    fputs(line, stdout);
}

static void print_keys(const struct mdl_gguf *g)
{
    struct mdl_str key;
    char value[160];
    for (uint64_t i = 0; mdl_gguf_key_at(g, i, &key, value, sizeof value); i++) {
        fputs("  ", stdout);
        print_text(key.data, key.len, 120);
        fputs(" = ", stdout);
        print_text(value, strlen(value), 160);
        putchar('\n');
    }
    for (uint64_t i = 0; i < mdl_gguf_tensor_count(g); i++) {
        const struct mdl_tensor *t = mdl_gguf_tensor_at(g, i);
        fputs("  ", stdout);
        print_text(t->name.data, t->name.len, 120);
        printf(" %s", mdl_type_name(t->type));
        for (uint32_t d = 0; d < t->dims; d++)
            printf("%s%llu", d ? " x " : " ", (unsigned long long)t->shape[d]);
        putchar('\n');
    }
}

static void print_types(const struct mdl_gguf *g)
{
    uint64_t count[64] = {0}, bytes[64] = {0};
    for (uint64_t i = 0; i < mdl_gguf_tensor_count(g); i++) {
        const struct mdl_tensor *t = mdl_gguf_tensor_at(g, i);
        if ((unsigned)t->type < 64) {
            count[t->type]++;
            bytes[t->type] += t->bytes;
        }
    }
    for (unsigned i = 0; i < 64; i++)
        if (count[i])
            printf("  %-6s %4llu tensors, %.1f MB\n", mdl_type_name((mdl_type)i), (unsigned long long)count[i],
                   (double)bytes[i] / 1e6);
}

/* What the architecture has beyond the common parts. */
static void print_parts(const struct mdl_card *c)
{
    uint32_t windowed = 0;
    for (uint32_t l = 0; l < c->layers; l++)
        windowed += mdl_card_window(c, l) != 0;
    if (c->experts.count != 0) {
        printf("experts        %u of %u a token, feed-forward %u", c->experts.used, c->experts.count, c->experts.ff);
        if (c->experts.ff_shared != 0)
            printf(", shared %u", c->experts.ff_shared);
        if (c->experts.dense_layers != 0)
            printf(", none in the first %u layers", c->experts.dense_layers);
        putchar('\n');
    }
    if (windowed != 0)
        printf("window         the last %u tokens in %u of %u layers\n", c->window.tokens, windowed, c->layers);
    if (c->latent.kv_rank != 0)
        printf("latent         rank %u, with %u rotated; queries' rank %u\n", c->latent.kv_rank, c->rope.dims,
               c->latent.q_rank);
    if (c->scale.score_cap != 0)
        printf("scores         capped at %g\n", (double)c->scale.score_cap);
    if (c->scale.softcap != 0)
        printf("logits         capped at %g\n", (double)c->scale.softcap);
}

/* How text is cut where the file says it, and a warning where it does not. */
static void print_tokenizer(const struct mdl_gguf *g)
{
    struct mdl_str model = {NULL, 0}, pre;
    bool named = mdl_gguf_str(g, "tokenizer.ggml.model", &model), cut = mdl_gguf_str(g, "tokenizer.ggml.pre", &pre);
    fputs("tokenizer      ", stdout);
    print_text(named ? model.data : "none", named ? model.len : 4, 40);
    if (cut) {
        fputs(", cut as ", stdout);
        print_text(pre.data, pre.len, 40);
    } else if (mdl_gguf_kind(g, "tokenizer.ggml.pre") == NULL && named && model.len == 4 &&
               memcmp(model.data, "gpt2", 4) == 0) {
        printf(", cut as default\nwarning        %s", MDL_PRE_GUESSED_TEXT);
    }
    putchar('\n');
}

/* What a sequence keeps: by token where layers attend (a latent is one row for keys and values), once where they have a state. */
static void print_memory(const struct mdl_card *c)
{
    uint64_t attend = 0, windowed = 0, states = 0;
    for (uint32_t l = 0; l < c->layers; l++) {
        windowed += mdl_card_window(c, l) != 0;
        attend += (c->layer[l] & MDL_LAYER_ATTENTION) != 0 && mdl_card_window(c, l) == 0;
        states += (c->layer[l] & MDL_LAYER_STATE) != 0;
    }
    uint64_t row = c->latent.kv_rank != 0 ? c->key_dim : (uint64_t)c->kv_heads * (c->key_dim + c->value_dim);
    printf("kv a token     %llu bytes in f16\n", (unsigned long long)(attend * row * 2));
    if (windowed != 0)
        printf("kv in windows  %llu bytes a sequence in f16, in %llu layers\n",
               (unsigned long long)(windowed * row * 2 * c->window.tokens), (unsigned long long)windowed);
    if (states != 0)
        printf("state          %llu bytes a sequence, in %llu layers\n",
               (unsigned long long)(states * mdl_card_state_bytes(c)), (unsigned long long)states);
}

static void print_card(const struct mdl_model *m, const struct mdl_card *c)
{
    const struct mdl_gguf *g = m->gguf;
    char rope[160], why[160] = "";
    (void)mdl_card_rope_text(c, c->context_length, rope, sizeof rope);
    printf("architecture   %s\n", c->arch);
    fputs("name           ", stdout);
    print_text(c->name, strlen(c->name), sizeof c->name);
    printf("\nfile           GGUF v%u, %.1f MB, header %.1f MB", mdl_gguf_version(g), (double)m->bytes / 1e6,
           (double)m->header_bytes / 1e6);
    if (m->part_count > 1)
        printf(", in %u parts", m->part_count);
    putchar('\n');
    printf("layers         %u, width %u, feed-forward %u\n", c->layers, c->width, c->ff);
    printf("attention      %u heads, %u kv heads, key %u, value %u\n", c->heads, c->kv_heads, c->key_dim, c->value_dim);
    print_parts(c);
    printf("rope           %s\n", rope);
    printf("vocabulary     %u tokens, output %s\n", c->vocab, c->tied ? "tied to the embedding" : "of its own");
    print_tokenizer(g);
    printf("context        %u tokens\n", c->context_length);
    print_memory(c);
    struct mdl_template *t = NULL;
    struct kvs_error err = {0};
    bool chat = mdl_template_create(g, &t, &err) == KVS_OK && mdl_template_ready(t, why, sizeof why);
    printf("chat           %s\n", chat ? "yes" : why[0] ? why : err.text);
    mdl_template_destroy(t);
    print_types(g);
}

static int info(int argc, char **argv)
{
    struct info_config c = {0};
    static const struct cli_usage usage = {.text = "usage: kvasir model info FILE|NAME [--all]", .positionals_max = 1};
    int rest, code = cli_flags(info_rows, 1, &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    struct kvs_error err = {0};
    char path[CLI_PATH_MAX];
    struct mdl_model m = {0};
    struct mdl_card card;
    kvs_status s = cli_model_resolve(rest < argc ? argv[rest] : "", path, sizeof path, &err);
    if (s == KVS_OK)
        s = mdl_model_open(path, &m, &err);
    if (s == KVS_OK && c.all)
        print_keys(m.gguf);
    if (s == KVS_OK)
        s = mdl_card_read(m.gguf, &card, &err);
    s = cli_model_fault(s, path, &err);
    if (s == KVS_OK)
        print_card(&m, &card);
    mdl_model_close(&m);
    return s == KVS_OK ? 0 : cli_failed(&err);
}

static void model_usage(FILE *out)
{
    fputs("usage: kvasir model pull NAME       fetch a model into the cache folder (once)\n"
          "       kvasir model list            the models that can be pulled or are here; --url HOST:PORT: those that "
          "a router serves\n"
          "       kvasir model info FILE|NAME  what a model file holds\n\nmodels to pull:\n",
          out);
    for (size_t i = 0; cli_model_at(i); i++)
        fprintf(out, "  %-10s %s, %.0f MB, %s\n", cli_model_at(i)->name, cli_model_at(i)->title,
                (double)cli_model_at(i)->bytes / 1e6, cli_model_at(i)->licence);
}

int cli_model(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "info"))
        return info(argc - 1, argv + 1);
    if (!strcmp(verb, "list"))
        return cli_model_list(argc - 1, argv + 1);
    if (!strcmp(verb, "--help") || !strcmp(verb, "-h")) {
        model_usage(stdout);
        return 0;
    }
    if (!strcmp(verb, "pull") && argc == 3 && strcmp(argv[2], "--help") != 0 && strcmp(argv[2], "-h") != 0)
        return pull(argv[2]);
    if (!strcmp(verb, "pull") && argc == 3) {
        model_usage(stdout);
        return 0;
    }
    struct kvs_error err;
    (void)kvs_fail(
        &err, KVS_SELF_CONFIG,
        "use: kvasir model pull NAME, kvasir model list, or kvasir model info FILE; kvasir model --help says more");
    return cli_failed(&err);
}
