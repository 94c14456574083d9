/* chat.c - `kvasir chat`: talks to a running cluster through its OpenAI-compatible API and streams the answer to the terminal.
 * Without --message it is a conversation: a line is a turn, earlier turns are sent along, an empty line is skipped, Ctrl-D ends it.
 * With --message one question is asked; --stats then says how long it took and where it ran, as the router's headers and metrics tell.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/http_client.h"
#include "cli/metrics_text.h"
#include "cli/sse.h"
#include "sys/clock.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METRICS_MAX (8u << 20)
#define TIMEOUT_MS 600000u

struct chat_config {
    char url[256], model[128], message[1u << 16], system[1u << 16];
    uint32_t max_tokens, placement_index;
    float temperature, top_p;
    uint64_t seed;
    bool stats;
};
#define AT(field) offsetof(struct chat_config, field)
static const struct kvs_config_row rows[] = {
    {"chat.url", "url", KVS_CFG_STRING, "127.0.0.1:8080", 0, 256, NULL, "the router's HOST:PORT", AT(url)},
    {"chat.model", "model", KVS_CFG_STRING, "", 0, 128, NULL,
     "model name; default the first one that the router serves", AT(model)},
    {"chat.message", "message", KVS_CFG_STRING, "", 0, 1u << 16, NULL, "ask this one question and leave", AT(message)},
    {"chat.system", "system", KVS_CFG_STRING, "", 0, 1u << 16, NULL, "system message", AT(system)},
    {"chat.max_tokens", "max-tokens", KVS_CFG_U32, "512", 1, 16777216, NULL, "longest answer", AT(max_tokens)},
    {"chat.temperature", "temperature", KVS_CFG_F32, "0.7", 0, 2, NULL, "0: greedy", AT(temperature)},
    {"chat.top_p", "top-p", KVS_CFG_F32, "1", 0, 1, NULL, "keep the best tokens that make up this probability",
     AT(top_p)},
    {"chat.seed", "seed", KVS_CFG_U64, "0", 0, 9007199254740992.0, NULL, "seed of the sampler; 0: the router draws one",
     AT(seed)},
    {"chat.placement", "placement", KVS_CFG_ENUM, "auto", 0, 0, "auto|local|remote", "where the prompt is prefilled",
     AT(placement_index)},
    {"chat.stats", "stats", KVS_CFG_BOOL, "false", 0, 0, NULL, "say how long it took and where it ran", AT(stats)},
};
static const struct cli_alias aliases[] = {{"-m", "--message"}, {NULL, NULL}};

struct answer {
    struct cli_sse sse;
    struct kvs_buf text;
    char error[256];
    uint64_t sent_us, first_us, last_us;
    uint64_t tokens, prompt_tokens;
    bool done; /* the stream ended with [DONE] */
};

static void take_chunk(struct answer *a, const json_t *root)
{
    const json_t *usage = json_object_get(root, "usage");
    if (json_is_object(usage)) {
        a->tokens = (uint64_t)json_integer_value(json_object_get(usage, "completion_tokens"));
        a->prompt_tokens = (uint64_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    }
    const char *error = json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    if (error)
        (void)kvs_format(a->error, sizeof a->error, "%s", error);
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const json_t *content = json_object_get(json_object_get(choice, "delta"), "content");
    if (!json_is_string(content) || json_string_length(content) == 0)
        return;
    a->last_us = kvs_now_us();
    if (!a->first_us)
        a->first_us = a->last_us;
    fwrite(json_string_value(content), 1, json_string_length(content), stdout);
    fflush(stdout);
    if (kvs_buf_append(&a->text, json_string_value(content), json_string_length(content)) != KVS_OK)
        (void)kvs_format(a->error, sizeof a->error, "the answer is longer than this program keeps");
}

static bool on_event(void *user, const char *data, size_t n)
{
    struct answer *a = user;
    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        a->done = true;
        return true;
    }
    json_t *root = json_loadb(data, n, 0, NULL);
    if (root)
        take_chunk(a, root);
    else
        (void)kvs_format(a->error, sizeof a->error, "the router sent an event that is not JSON");
    json_decref(root);
    return true;
}

static bool on_bytes(void *user, const char *bytes, size_t n)
{
    struct answer *a = user;
    kvs_status s = cli_sse_feed(&a->sse, bytes, n);
    if (s != KVS_OK)
        (void)kvs_format(a->error, sizeof a->error, "the router sent an event that is too large");
    return s == KVS_OK;
}

static char *request_text(const struct chat_config *c, const json_t *messages)
{
    static const char *const placements[] = {"auto", "local", "remote"};
    json_t *r = json_pack("{s:s, s:O, s:b, s:{s:b}, s:i, s:f, s:f}", "model", c->model, "messages", messages, "stream",
                          1, "stream_options", "include_usage", 1, "max_tokens", (int)c->max_tokens, "temperature",
                          (double)c->temperature, "top_p", (double)c->top_p);
    if (r && c->seed)
        (void)json_object_set_new(r, "seed", json_integer((json_int_t)c->seed));
    if (r && c->placement_index)
        (void)json_object_set_new(r, "kvasir", json_pack("{s:s}", "placement", placements[c->placement_index]));
    char *text = r ? json_dumps(r, JSON_COMPACT) : NULL;
    json_decref(r);
    return text;
}

static kvs_status ask(const struct chat_config *c, const char *base, const json_t *messages, struct answer *a,
                      char placement[256], struct kvs_error *err)
{
    char url[320];
    (void)kvs_format(url, sizeof url, "%s/v1/chat/completions", base);
    char *body = request_text(c, messages);
    if (!body)
        return kvs_fail(err, KVS_SELF_CONFIG, "the message is not valid UTF-8");
    struct kvs_buf refused;
    kvs_buf_init(&refused, 1u << 16);
    struct cli_http h = {
        .url = url, .body = body, .timeout_ms = TIMEOUT_MS, .out = &refused, .on_bytes = on_bytes, .user = a};
    a->sent_us = kvs_now_us();
    kvs_status s = cli_http(&h, err);
    (void)kvs_format(placement, 256, "%s", h.placement);
    if (s == KVS_OK && h.status != 200) {
        char text[256];
        cli_http_error_text(&h, &refused, text, sizeof text);
        s = kvs_fail(err, KVS_PEER_REFUSED, "%s", text);
    } else if (a->error[0]) {
        s = kvs_fail(err, KVS_PEER_LOST, "%s", a->error);
    } else if (s == KVS_OK && !a->done) {
        s = kvs_fail(err, KVS_PEER_LOST, "the answer broke off");
    }
    kvs_buf_fini(&refused);
    free(body);
    return s;
}

/* Without --model: the first one of /v1/models. */
static kvs_status choose_model(struct chat_config *c, const char *base, struct kvs_error *err)
{
    if (c->model[0])
        return KVS_OK;
    char url[320], text[256];
    (void)kvs_format(url, sizeof url, "%s/v1/models", base);
    struct kvs_buf body;
    kvs_buf_init(&body, 1u << 20);
    struct cli_http h = {.url = url, .timeout_ms = 5000, .out = &body};
    kvs_status s = cli_http(&h, err);
    json_t *root = s == KVS_OK ? json_loadb(kvs_buf_text(&body), body.len, 0, NULL) : NULL;
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
    if (s == KVS_OK && h.status != 200) {
        cli_http_error_text(&h, &body, text, sizeof text);
        s = kvs_fail(err, KVS_PEER_REFUSED, "%s", text);
    } else if (s == KVS_OK && !id) {
        s = kvs_fail(err, KVS_BUSY_NO_WORKER, "the router serves no model yet; wait until its workers have joined");
    } else if (s == KVS_OK) {
        (void)kvs_format(c->model, sizeof c->model, "%s", id);
    }
    json_decref(root);
    kvs_buf_fini(&body);
    return s;
}

static void print_stats(const char *base, const struct answer *a, const char *placement,
                        const struct cli_transfer *before)
{
    struct cli_transfer after = {0};
    kvs_sleep_us(700000); /* the router's page is at most 0.5 s old */
    bool known = cli_transfer_read(base, &after);
    printf("\nTTFT           %.1f ms (prompt of %llu tokens)\n", (double)(a->first_us - a->sent_us) / 1e3,
           (unsigned long long)a->prompt_tokens);
    if (a->tokens > 1 && a->last_us > a->first_us)
        printf("decode         %.1f tokens/s (%llu tokens)\n",
               (double)(a->tokens - 1) / ((double)(a->last_us - a->first_us) / 1e6), (unsigned long long)a->tokens);
    printf("placement      %s\n", placement[0] ? placement : "the router did not say");
    double bytes = after.bytes - before->bytes, seconds = after.seconds - before->seconds;
    if (known && bytes > 0)
        printf("KV moved       %.0f bytes in %.0f pages by %s; first to last in %.1f ms (%.1f MB/s), beside prefill; %.1f ms of it after\n",
               bytes, after.pages - before->pages, after.transport, seconds * 1e3, seconds > 0 ? bytes / seconds / 1e6 : 0.0,
               (after.exposed - before->exposed) * 1e3);
    else
        printf("KV moved       none\n");
}

static int one_question(const struct chat_config *c, const char *base, json_t *messages)
{
    struct kvs_error err = {0};
    struct cli_transfer before = {0};
    struct answer a = {0};
    char placement[256];
    if (c->stats)
        (void)cli_transfer_read(base, &before);
    cli_sse_init(&a.sse, on_event, &a);
    kvs_buf_init(&a.text, 1u << 24);
    (void)json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", c->message));
    kvs_status s = ask(c, base, messages, &a, placement, &err);
    putchar('\n');
    if (s == KVS_OK && c->stats)
        print_stats(base, &a, placement, &before);
    cli_sse_fini(&a.sse);
    kvs_buf_fini(&a.text);
    return s == KVS_OK ? 0 : cli_failed(&err);
}

static int conversation(const struct chat_config *c, const char *base, json_t *messages)
{
    bool terminal = isatty(STDIN_FILENO) == 1;
    char *line = NULL;
    size_t cap = 0;
    int code = 0;
    if (terminal)
        printf("Talking to %s at %s. Ctrl-D ends.\n", c->model, base);
    for (;;) {
        if (terminal) {
            fputs("\n> ", stdout);
            fflush(stdout);
        }
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0)
            break;
        line[strcspn(line, "\r\n")] = '\0';
        if (!line[0])
            continue;
        struct kvs_error err = {0};
        struct answer a = {0};
        char placement[256];
        cli_sse_init(&a.sse, on_event, &a);
        kvs_buf_init(&a.text, 1u << 24);
        kvs_status s = KVS_SELF_CONFIG;
        if (json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", line)) == 0)
            s = ask(c, base, messages, &a, placement, &err);
        else
            (void)kvs_fail(&err, KVS_SELF_CONFIG, "the message is not valid UTF-8");
        putchar('\n');
        if (s == KVS_OK)
            (void)json_array_append_new(messages,
                                        json_pack("{s:s, s:s}", "role", "assistant", "content", kvs_buf_text(&a.text)));
        else if (json_array_size(messages) > 0)
            (void)json_array_remove(messages, json_array_size(messages) - 1); /* a turn without an answer is no turn */
        code = s == KVS_OK ? 0 : cli_failed(&err);
        cli_sse_fini(&a.sse);
        kvs_buf_fini(&a.text);
    }
    free(line);
    return code;
}

int cli_chat(int argc, char **argv)
{
    static struct chat_config c;
    static const struct cli_usage usage = {.text = "usage: kvasir chat [--url HOST:PORT] [--message TEXT] [FLAGS]",
                                           .aliases = aliases};
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    struct kvs_error err = {0};
    char base[300];
    kvs_status s = cli_base_url(c.url, base, sizeof base, &err);
    if (s == KVS_OK)
        s = choose_model(&c, base, &err);
    if (s != KVS_OK)
        return cli_failed(&err);
    json_t *messages = json_array();
    if (c.system[0])
        (void)json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", c.system));
    code = c.message[0] ? one_question(&c, base, messages) : conversation(&c, base, messages);
    json_decref(messages);
    return code;
}
