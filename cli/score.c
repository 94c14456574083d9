/* score.c - `kvasir score`: the engine alone reads given tokens and says how likely each one was.
 * n tokens give n - 1 lines about the token that follows position pos, then a summary: {"tokens","nll","perplexity"} with the number of
 * scored tokens, the sum of their negative natural log probabilities, and exp(nll / tokens). Nothing is cut into windows: what does not fit
 * the context is refused. --text is tokenized without special tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "cli/engine_run.h"
#include "cli/ids.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (64u << 20)
#define TOP_MAX 1000

struct score_config {
    struct cli_engine_config engine;
    char ids[CLI_IDS_TEXT_MAX];
    char text[CLI_PATH_MAX];
    uint32_t top;
    bool json;
};

static const struct kvs_config_row rows[] = {
    CLI_ENGINE_ROWS(struct score_config, engine),
    {"score.ids", "ids", KVS_CFG_STRING, "", 0, CLI_IDS_TEXT_MAX, NULL, "token ids to score: 1,2,3",
     offsetof(struct score_config, ids)},
    {"score.text", "text", KVS_CFG_STRING, "", 0, CLI_PATH_MAX, NULL,
     "file with text to score, tokenized without special tokens", offsetof(struct score_config, text)},
    {"score.top", "top", KVS_CFG_U32, "0", 0, TOP_MAX, NULL, "also list the K best tokens of each position",
     offsetof(struct score_config, top)},
    {"score.json", "json", KVS_CFG_BOOL, "false", 0, 0, NULL, "one JSON object a position",
     offsetof(struct score_config, json)},
};
static const struct cli_alias aliases[] = {{"-m", "--model"}, {NULL, NULL}};

struct total {
    uint32_t tokens;
    double nll;
};

static kvs_status read_text(const char *path, struct kvs_buf *out, struct kvs_error *err)
{
    FILE *f = fopen(path, "rbe");
    if (!f)
        return kvs_fail(err, KVS_SELF_CONFIG, "--text '%.160s': %s", path, strerror(errno));
    kvs_status s = KVS_OK;
    char chunk[65536];
    for (size_t n; s == KVS_OK && (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
        s = kvs_buf_append(out, chunk, n);
    bool bad = ferror(f) != 0;
    fclose(f);
    if (bad)
        return kvs_fail(err, KVS_SELF_IO, "--text '%.160s' cannot be read; give a text file", path);
    return s == KVS_OK ? s : kvs_fail(err, s, "--text '%.160s' is larger than %u MB", path, TEXT_MAX >> 20);
}

static kvs_status read_ids(const struct score_config *c, const struct cli_engine *e, struct mdl_ids *out,
                           struct kvs_error *err)
{
    if (c->ids[0])
        return cli_ids_parse(c->ids, e->card.vocab, out, err);
    struct kvs_buf text;
    kvs_buf_init(&text, TEXT_MAX);
    kvs_status s = read_text(c->text, &text, err);
    if (s == KVS_OK)
        s = mdl_encode(e->tokenizer, kvs_buf_text(&text), text.len, 0, e->context, out, err);
    if (s == KVS_REQ_TOO_LONG)
        s = kvs_fail(err, s, "--text '%.160s' has more tokens than the context of %u; raise --context or give less", c->text, e->context);
    kvs_buf_fini(&text);
    return s;
}

/* log(sum(exp(row))) in double. */
static double log_sum_exp(const float *row, uint32_t vocab, uint32_t *best_out)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (row[i] > row[best])
            best = i;
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)row[i] - (double)row[best]);
    *best_out = best;
    return (double)row[best] + log(sum);
}

/* The k best ids by falling logit, ties by rising id; insertion into a short list. */
static uint32_t top_ids(const float *row, uint32_t vocab, uint32_t k, uint32_t *ids)
{
    uint32_t n = 0;
    for (uint32_t i = 0; k && i < vocab; i++) {
        if (n == k && !(row[i] > row[ids[n - 1]]))
            continue;
        uint32_t at = n < k ? n++ : n - 1;
        for (; at > 0 && row[i] > row[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = i;
    }
    return n;
}

static kvs_status say_position(const struct score_config *c, struct kvs_buf *line, uint32_t pos, uint32_t id,
                               const float *row, uint32_t vocab, struct total *t)
{
    uint32_t best, top[TOP_MAX];
    double logprob = (double)row[id] - log_sum_exp(row, vocab, &best);
    t->tokens++;
    t->nll -= logprob;
    if (!c->json)
        return KVS_OK;
    struct kvs_json j;
    kvs_buf_clear(line);
    kvs_json_begin(&j, line);
    kvs_json_object(&j);
    kvs_json_field_u64(&j, "pos", pos);
    kvs_json_field_u64(&j, "id", id);
    kvs_json_key(&j, "logit");
    kvs_json_f32(&j, row[id]);
    kvs_json_field_f64(&j, "logprob", logprob);
    kvs_json_field_u64(&j, "best", best);
    kvs_json_key(&j, "best_logit");
    kvs_json_f32(&j, row[best]);
    kvs_json_key(&j, "top");
    kvs_json_array(&j);
    uint32_t n = top_ids(row, vocab, c->top < vocab ? c->top : vocab, top);
    for (uint32_t i = 0; i < n; i++) {
        kvs_json_array(&j);
        kvs_json_u64(&j, top[i]);
        kvs_json_f32(&j, row[top[i]]);
        kvs_json_array_end(&j);
    }
    kvs_json_array_end(&j);
    kvs_json_object_end(&j);
    kvs_status s = kvs_json_end(&j);
    if (s == KVS_OK)
        puts(kvs_buf_text(line));
    return s;
}

static kvs_status say_total(const struct score_config *c, struct kvs_buf *line, const struct total *t)
{
    double perplexity = exp(t->nll / t->tokens);
    if (!c->json) {
        printf("tokens %u, nll %.6f, perplexity %.6f\n", t->tokens, t->nll, perplexity);
        return KVS_OK;
    }
    struct kvs_json j;
    kvs_buf_clear(line);
    kvs_json_begin(&j, line);
    kvs_json_object(&j);
    kvs_json_field_u64(&j, "tokens", t->tokens);
    kvs_json_field_f64(&j, "nll", t->nll);
    kvs_json_field_f64(&j, "perplexity", perplexity);
    kvs_json_object_end(&j);
    kvs_status s = kvs_json_end(&j);
    if (s == KVS_OK)
        puts(kvs_buf_text(line));
    return s;
}

static kvs_status score(struct cli_engine *e, const struct score_config *c, const struct mdl_ids *ids,
                        struct kvs_error *err)
{
    struct kvs_buf line;
    kvs_buf_init(&line, 1u << 20);
    struct total t = {0};
    uint32_t n = (uint32_t)ids->count - 1; /* the last token is scored, not computed */
    kvs_status s = KVS_OK;
    for (uint32_t done = 0; s == KVS_OK && done < n;) {
        uint32_t count = n - done < e->chunk_tokens ? n - done : e->chunk_tokens;
        s = cli_engine_step(e, ids->ids + done, count, 0, err);
        for (uint32_t i = 0; s == KVS_OK && i < count; i++) {
            s = say_position(c, &line, done + i, (uint32_t)ids->ids[done + i + 1],
                             e->logits + (size_t)i * e->card.vocab, e->card.vocab, &t);
            if (s != KVS_OK)
                (void)kvs_fail(err, s, "out of memory");
        }
        done += count;
    }
    if (s == KVS_OK)
        s = say_total(c, &line, &t);
    kvs_buf_fini(&line);
    return s;
}

int cli_score(int argc, char **argv)
{
    static struct score_config c;
    static const struct cli_usage usage = {
        .text = "usage: kvasir score --model FILE (--ids 1,2,3 | --text FILE) [--top K] [--json] [FLAGS]\n"
                "The last line sums up: tokens scored, nll (the sum of -ln p), perplexity = exp(nll / tokens).",
        .aliases = aliases,
    };
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    struct kvs_error err = {0};
    if (!c.ids[0] == !c.text[0]) {
        (void)kvs_fail(&err, KVS_SELF_CONFIG, "give either --ids 1,2,3 or --text FILE");
        return cli_failed(&err);
    }
    struct cli_engine e;
    struct mdl_ids ids = {0};
    kvs_status s = cli_engine_open(&e, &c.engine, &err);
    if (s == KVS_OK)
        s = read_ids(&c, &e, &ids, &err);
    if (s == KVS_OK && ids.count < 2)
        s = kvs_fail(&err, KVS_SELF_CONFIG, "scoring needs two tokens or more");
    if (s == KVS_OK)
        s = cli_engine_reserve(&e, &c.engine, ids.count, true, &err);
    if (s == KVS_OK)
        s = score(&e, &c, &ids, &err);
    mdl_ids_fini(&ids);
    cli_engine_close(&e);
    return s == KVS_OK ? 0 : cli_failed(&err);
}
