/* template.c - chat messages to prompt text.
 *
 * A chat template is a program in the model's file. Until it can be interpreted in a sandbox, the ones known here are
 * recognised by the SHA-256 of their text and rendered by C that gives the same bytes as Jinja2 does (the tests hold
 * expected text made with it). An unknown template is never guessed at: a wrong prompt format gives plausible nonsense.
 *
 * Roles and contents go in as they are: whoever tokenizes the result with special tokens parsed lets a message's text
 * close its own turn, as every engine with such templates does.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/template.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

typedef kvs_status (*render_fn)(const struct mdl_message *messages, size_t count, bool add_generation_prompt,
                                struct kvs_buf *out);

struct mdl_template {
    render_fn render; /* NULL: why says so */
    char why[200];
};

static kvs_status put_str(struct kvs_buf *out, struct mdl_str s)
{
    return kvs_buf_append(out, s.data, s.len);
}

static bool str_is(struct mdl_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* {% for message in messages %}
 *   {% if loop.first and messages[0]['role'] != 'system' %} the default system message {% endif %}
 *   <|im_start|>ROLE\nCONTENT<|im_end|>\n
 * {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %} */
static kvs_status render_smollm2(const struct mdl_message *messages, size_t count, bool add_generation_prompt,
                                 struct kvs_buf *out)
{
    kvs_status s = KVS_OK;
    if (count > 0 && !str_is(messages[0].role, "system"))
        s = kvs_buf_puts(
            out,
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n");
    for (size_t i = 0; s == KVS_OK && i < count; i++) {
        s = kvs_buf_puts(out, "<|im_start|>");
        if (s == KVS_OK)
            s = put_str(out, messages[i].role);
        if (s == KVS_OK)
            s = kvs_buf_puts(out, "\n");
        if (s == KVS_OK)
            s = put_str(out, messages[i].content);
        if (s == KVS_OK)
            s = kvs_buf_puts(out, "<|im_end|>\n");
    }
    if (s == KVS_OK && add_generation_prompt)
        s = kvs_buf_puts(out, "<|im_start|>assistant\n");
    return s;
}

static const struct {
    const char *sha256; /* of the template's text */
    render_fn render;
} known[] = {
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", render_smollm2},
};

static bool hash_text(struct mdl_str text, char hex_out[65])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t sum[32];
    unsigned int n = 0;
    if (EVP_Digest(text.data, text.len, sum, &n, EVP_sha256(), NULL) != 1 || n != sizeof sum)
        return false;
    for (size_t i = 0; i < sizeof sum; i++) {
        hex_out[2 * i] = digits[sum[i] >> 4];
        hex_out[2 * i + 1] = digits[sum[i] & 15];
    }
    hex_out[64] = '\0';
    return true;
}

kvs_status mdl_template_create(const struct mdl_gguf *g, struct mdl_template **out, struct kvs_error *err)
{
    struct mdl_str text;
    char hex[65];
    struct mdl_template *t = calloc(1, sizeof *t);
    if (t == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the chat template");
    if (!mdl_gguf_str(g, "tokenizer.chat_template", &text)) {
        kvs_format(t->why, sizeof t->why, "the model file has no chat template: use /v1/completions");
        *out = t;
        return KVS_OK;
    }
    if (!hash_text(text, hex)) {
        mdl_template_destroy(t);
        return kvs_fail(err, KVS_SELF_INTERNAL, "the chat template cannot be hashed");
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].sha256, hex) == 0)
            t->render = known[i].render;
    }
    kvs_format(t->why, sizeof t->why,
               "the model's chat template (SHA-256 %.12s...) is not one that this build knows: use /v1/completions",
               hex);
    *out = t;
    return KVS_OK;
}

void mdl_template_destroy(struct mdl_template *t)
{
    free(t);
}

bool mdl_template_ready(const struct mdl_template *t, char *why_out, size_t why_cap)
{
    if (t->render != NULL)
        return true;
    kvs_format(why_out, why_cap, "%s", t->why);
    return false;
}

kvs_status mdl_template_render(const struct mdl_template *t, const struct mdl_message *messages, size_t count,
                               bool add_generation_prompt, struct kvs_buf *out, struct kvs_error *err)
{
    if (t->render == NULL)
        return kvs_fail(err, KVS_REQ_INVALID, "%s", t->why);
    size_t before = out->len;
    kvs_status s = t->render(messages, count, add_generation_prompt, out);
    if (s == KVS_OK)
        return KVS_OK;
    out->len = before;
    if (out->data != NULL)
        out->data[before] = 0;
    if (s == KVS_BUSY_FULL)
        return kvs_fail(err, KVS_REQ_TOO_LONG, "the rendered chat is longer than %zu bytes", out->max);
    return kvs_fail(err, s, "no memory for the rendered chat");
}
