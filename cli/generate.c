/* generate.c - `kvasir generate`: the engine alone continues a prompt, one token a step.
 * With --json one object a token: {"id","logit","margin","text"}; text is what has become certain with this token (a character that spans
 * several tokens comes with its last one). Otherwise the text is streamed and a line of figures goes to stderr.
 * Greedy unless --temperature says otherwise; sampling is a function of (seed, position), as in a cluster.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "cli/engine_run.h"
#include "cli/ids.h"
#include "engine/sampler.h"
#include "model/template.h"
#include "sys/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_MAX (1u << 20)

struct generate_config {
    struct cli_engine_config engine;
    char prompt[PROMPT_MAX];
    char ids[CLI_IDS_TEXT_MAX];
    uint32_t tokens;
    uint64_t seed;
    float temperature, top_p, min_p;
    uint32_t top_k;
    bool json, ignore_eos, chat;
};

static const struct kvs_config_row rows[] = {
    CLI_ENGINE_ROWS(struct generate_config, engine),
    {"generate.prompt", "prompt", KVS_CFG_STRING, "", 0, PROMPT_MAX, NULL, "text to continue",
     offsetof(struct generate_config, prompt)},
    {"generate.ids", "ids", KVS_CFG_STRING, "", 0, CLI_IDS_TEXT_MAX, NULL,
     "token ids to continue, as they stand: 1,2,3", offsetof(struct generate_config, ids)},
    {"generate.chat", "chat", KVS_CFG_BOOL, "false", 0, 0, NULL,
     "the prompt is a user's message; use the model's chat template", offsetof(struct generate_config, chat)},
    {"generate.tokens", "tokens", KVS_CFG_U32, "0", 0, 16777216, NULL,
     "tokens to generate (-n); 0: 128, or fewer when the context is full", offsetof(struct generate_config, tokens)},
    {"generate.seed", "seed", KVS_CFG_U64, "0", 0, 1.8446744073709552e19, NULL, "seed of the sampler",
     offsetof(struct generate_config, seed)},
    {"generate.temperature", "temperature", KVS_CFG_F32, "0", 0, 100, NULL, "0: greedy",
     offsetof(struct generate_config, temperature)},
    {"generate.top_k", "top-k", KVS_CFG_U32, "0", 0, 4294967295.0, NULL, "keep the k best tokens; 0: all",
     offsetof(struct generate_config, top_k)},
    {"generate.top_p", "top-p", KVS_CFG_F32, "1", 0, 1, NULL,
     "keep the best tokens that make up this probability; 1: all", offsetof(struct generate_config, top_p)},
    {"generate.min_p", "min-p", KVS_CFG_F32, "0", 0, 1, NULL,
     "drop tokens below this share of the best one's probability; 0: none", offsetof(struct generate_config, min_p)},
    {"generate.ignore_eos", "ignore-eos", KVS_CFG_BOOL, "false", 0, 0, NULL, "go on after an end-of-sequence token",
     offsetof(struct generate_config, ignore_eos)},
    {"generate.json", "json", KVS_CFG_BOOL, "false", 0, 0, NULL, "one JSON object a token",
     offsetof(struct generate_config, json)},
};
static const struct cli_alias aliases[] = {{"-n", "--tokens"}, {"-m", "--model"}, {"-p", "--prompt"}, {NULL, NULL}};

struct run {
    struct cli_engine engine;
    struct mdl_ids ids; /* prompt, then what was generated */
    struct mdl_detok detok;
    struct kvs_buf piece, line;
    void *scratch;
};

static kvs_status chat_text(const struct generate_config *c, const struct cli_engine *e, struct kvs_buf *out,
                            struct kvs_error *err)
{
    struct mdl_template *t = NULL;
    struct mdl_message m = {.role = {"user", 4}, .content = {c->prompt, strlen(c->prompt)}};
    kvs_status s = mdl_template_create(e->gguf, &t, err);
    if (s == KVS_OK)
        s = mdl_template_render(t, &m, 1, true, out, err);
    mdl_template_destroy(t);
    return s;
}

static kvs_status read_prompt(const struct generate_config *c, struct run *r, struct kvs_error *err)
{
    if (c->ids[0])
        return cli_ids_parse(c->ids, r->engine.card.vocab, &r->ids, err);
    struct kvs_buf rendered;
    kvs_buf_init(&rendered, 4 * PROMPT_MAX);
    kvs_status s = c->chat ? chat_text(c, &r->engine, &rendered, err) : KVS_OK;
    if (s == KVS_OK && c->chat)
        s = mdl_encode_chat(r->engine.tokenizer, kvs_buf_text(&rendered), rendered.len, r->engine.context, &r->ids,
                            err);
    else if (s == KVS_OK)
        s = mdl_encode(r->engine.tokenizer, c->prompt, strlen(c->prompt), MDL_ADD_SPECIAL, r->engine.context, &r->ids,
                       err);
    kvs_buf_fini(&rendered);
    if (s == KVS_OK && r->ids.count == 0)
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "the prompt is empty and this model has no start token; give --prompt or --ids");
    return s;
}

/* The answer is the text's very beginning: SentencePiece's prefixed space is then dropped. */
static bool only_control(const struct run *r)
{
    for (size_t i = 0; i < r->ids.count; i++)
        if (!mdl_is_control(r->engine.tokenizer, r->ids.ids[i]))
            return false;
    return true;
}

static bool ends_generation(const struct mdl_card *card, int32_t id)
{
    for (uint32_t i = 0; i < card->eog_count; i++)
        if (card->eog[i] == id)
            return true;
    return false;
}

static kvs_status emit(struct run *r, const struct generate_config *c, const struct eng_sample *t, bool last)
{
    kvs_buf_clear(&r->piece);
    kvs_status s = mdl_detok_push(&r->detok, t->id, &r->piece);
    if (s == KVS_OK && last)
        s = mdl_detok_flush(&r->detok, &r->piece);
    if (s != KVS_OK)
        return s;
    if (!c->json) {
        fwrite(kvs_buf_text(&r->piece), 1, r->piece.len, stdout);
        fflush(stdout);
        return KVS_OK;
    }
    struct kvs_json j;
    kvs_buf_clear(&r->line);
    kvs_json_begin(&j, &r->line);
    kvs_json_object(&j);
    kvs_json_key(&j, "id");
    kvs_json_i64(&j, t->id);
    kvs_json_key(&j, "logit");
    kvs_json_f32(&j, t->logit);
    kvs_json_key(&j, "margin");
    kvs_json_f32(&j, t->margin);
    kvs_json_key(&j, "text");
    kvs_json_bytes(&j, kvs_buf_text(&r->piece), r->piece.len);
    kvs_json_object_end(&j);
    s = kvs_json_end(&j);
    if (s == KVS_OK) {
        puts(kvs_buf_text(&r->line));
        fflush(stdout);
    }
    return s;
}

static kvs_status prefill(struct run *r, struct kvs_error *err)
{
    uint32_t n = (uint32_t)r->ids.count;
    for (uint32_t done = 0; done < n;) {
        uint32_t count = n - done < r->engine.chunk_tokens ? n - done : r->engine.chunk_tokens;
        bool last = done + count == n;
        kvs_status s = cli_engine_step(&r->engine, r->ids.ids + done, count, last ? count - 1 : count, err);
        if (s != KVS_OK)
            return s;
        done += count;
    }
    return KVS_OK;
}

static kvs_status generate(struct run *r, const struct generate_config *c, struct kvs_error *err)
{
    struct cli_engine *e = &r->engine;
    struct eng_sampling p = {
        .temperature = c->temperature, .top_k = c->top_k, .top_p = c->top_p, .min_p = c->min_p, .seed = c->seed};
    uint32_t prompt = (uint32_t)r->ids.count;
    uint64_t t0 = kvs_now_us();
    kvs_status s = prefill(r, err);
    uint64_t t1 = kvs_now_us();
    uint32_t n = 0;
    for (bool last = false; s == KVS_OK && !last;) {
        struct eng_sample t;
        s = eng_sample_row(e->logits, e->card.vocab, &p, 0, (uint32_t)r->ids.count, r->scratch, &t);
        if (s != KVS_OK)
            return kvs_fail(err, s, "the model computed NaN after %zu tokens", r->ids.count);
        n++;
        last = n == c->tokens || (!c->ignore_eos && ends_generation(&e->card, t.id));
        s = emit(r, c, &t, last);
        if (s == KVS_OK)
            s = mdl_ids_push(&r->ids, t.id);
        if (s != KVS_OK)
            return kvs_fail(err, s, "out of memory");
        if (!last)
            s = cli_engine_step(e, &t.id, 1, 0, err);
    }
    uint64_t t2 = kvs_now_us();
    if (s == KVS_OK && !c->json)
        fprintf(stderr, "\nkvasir: %s: prompt %u tokens at %.1f tok/s, answer %u tokens at %.1f tok/s\n",
                eng_model_isa(e->model), prompt, prompt / ((double)(t1 - t0 + 1) / 1e6), n,
                n > 1 ? (n - 1) / ((double)(t2 - t1 + 1) / 1e6) : 0.0);
    return s;
}

int cli_generate(int argc, char **argv)
{
    static struct generate_config c; /* large: long prompts */
    static const struct cli_usage usage = {
        .text = "usage: kvasir generate --model FILE (--prompt TEXT | --ids 1,2,3) [-n N] [FLAGS]", .aliases = aliases};
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    struct kvs_error err = {0};
    if (!c.ids[0] && !c.prompt[0]) {
        (void)kvs_fail(&err, KVS_SELF_CONFIG, "nothing to continue; give --prompt TEXT or --ids 1,2,3");
        return cli_failed(&err);
    }
    if (c.ids[0] && (c.prompt[0] || c.chat)) {
        (void)kvs_fail(&err, KVS_SELF_CONFIG, "--ids stands alone; leave out --prompt and --chat");
        return cli_failed(&err);
    }
    struct run r = {0};
    kvs_buf_init(&r.piece, 1u << 16);
    kvs_buf_init(&r.line, 1u << 20);
    kvs_status s = cli_engine_open(&r.engine, &c.engine, &err);
    if (s == KVS_OK)
        s = read_prompt(&c, &r, &err);
    if (s == KVS_OK && c.tokens == 0) {
        uint32_t rest_tokens = r.ids.count < r.engine.context ? r.engine.context - (uint32_t)r.ids.count : 1;
        c.tokens = rest_tokens < 128 ? rest_tokens : 128;
    }
    if (s == KVS_OK)
        s = cli_engine_reserve(&r.engine, &c.engine, (uint64_t)r.ids.count + c.tokens, false, &err);
    if (s == KVS_OK && !(r.scratch = malloc((size_t)r.engine.card.vocab * 8)))
        s = kvs_fail(&err, KVS_SELF_NOMEM, "out of memory");
    if (s == KVS_OK) {
        mdl_detok_init(&r.detok, r.engine.tokenizer, false, only_control(&r));
        s = generate(&r, &c, &err);
    }
    free(r.scratch);
    mdl_ids_fini(&r.ids);
    kvs_buf_fini(&r.piece);
    kvs_buf_fini(&r.line);
    cli_engine_close(&r.engine);
    return s == KVS_OK ? 0 : cli_failed(&err);
}
