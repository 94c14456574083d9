/* template_fuzz.c - any bytes as a chat template, run over a chat with tools; up to a zero byte the template, after it JSON
 * that takes the chat's place when it is an object. Every rendering has to end, well-formed or refused.
 * With libFuzzer:  clang -g -fsanitize=fuzzer,address,undefined -DKVS_LIBFUZZER ... template_fuzz.c; without it see replay.h: a few
 * templates are damaged.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/template.h"
#include "tests/fuzz/replay.h"
#include "tests/support/gguf_writer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char chat_json[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"na\\u00efve "
    "\\ud83d\\ude00\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"123456789\",\"type\":\"function\",\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5,true]}}}]},{\"role\":\"tool\",\"content\":\"3\",\"tool_call_id\":"
    "\"123456789\"}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":"
    "\"object\","
    "\"properties\":{\"x\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}}},\"required\":[\"x\"]}}}],"
    "\"extra\":{\"enable_thinking\":true,\"documents\":[{\"doc_id\":1,\"text\":\"t\"}]}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
    size_t n = zero != NULL ? (size_t)(zero - data) : size;
    struct mdl_gguf *g;
    struct mdl_template *t;
    struct kvs_error err;
    size_t file_size;
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_gguf_str(w, "general.architecture", "llama");
    tst_gguf_bytes(w, "tokenizer.chat_template", n > 0 ? (const void *)data : "", n);
    uint8_t *bytes = tst_gguf_finish(w, &file_size, NULL);
    if (mdl_gguf_parse(bytes, file_size, true, &g, &err) != KVS_OK || mdl_template_create(g, &t, &err) != KVS_OK)
        abort();
    json_t *chat = zero != NULL ? json_loadb((const char *)zero + 1, size - n - 1, JSON_ALLOW_NUL, NULL) : NULL;
    if (!json_is_object(chat)) {
        json_decref(chat);
        chat = json_loads(chat_json, 0, NULL);
    }
    struct mdl_chat c = {.messages = json_object_get(chat, "messages"), .tools = json_object_get(chat, "tools"),
                         .extra = json_object_get(chat, "extra"), .add_generation_prompt = true, .now_s = 1736942400};
    struct kvs_buf out;
    kvs_buf_init(&out, 1 << 20);
    kvs_status s = mdl_template_render_chat(t, &c, &out, &err);
    if (s != KVS_OK && s != KVS_REQ_INVALID && s != KVS_REQ_TOO_LONG)
        abort();
    if (s != KVS_OK && (out.len != 0 || err.code != s || err.text[0] == '\0'))
        abort();
    kvs_buf_fini(&out);
    json_decref(chat);
    mdl_template_destroy(t);
    mdl_gguf_destroy(g);
    free(bytes);
    return 0;
}

#ifndef KVS_LIBFUZZER
static const char *const seeds[] = {
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m.content|default('', true) + '<|im_end|>' }}{% "
    "endfor %}",
    "{%- if tools %}{% for t in tools %}{{ t | tojson(indent=2) }}{% endfor %}{%- endif -%}\n{{ messages[1:]|length }}",
    "{% macro m(p, r=[]) -%}{% for k, v in p.properties|items if k not in r %}{{ k ~ ':' ~ v.type|upper }}{% else "
    "%}-{% endfor %}"
    "{%- endmacro %}{{ m(tools[0].function.parameters, r=['y']) }}{% set x | trim %} a {% endset %}{{ x }}",
    "{% set ns = namespace(i=0) %}{% for m in messages[::-1] %}{% set ns.i = ns.i + loop.index0 * 2 % 3 %}{% if ns.i > "
    "3 %}"
    "{% break %}{% endif %}{{ loop.previtem.role if not loop.first else '' }}{% endfor %}{{ ns.i is odd and 'a' in "
    "'abc' }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(', ')|replace('a', 'b')|title }}"
    "{{ 'a,b'.split(',')[0].strip().startswith('a') }}{{ '%s-%d' % ('x', 3) }}{{ strftime_now('%d %B') }}{{ "
    "raise_exception('no') }}",
    "{# c #}{% raw %}{{ }}{% endraw %}{% call(q) m(1) %}{{ q }}{% endcall %}{{ [1, 2.5e3, {'a': "
    "none}]|sort|unique|list }}",
};

static void damage(struct kvs_rng *rng)
{
    static const char letters[] = "{}%#-+|.()[]'\"\\ \n,:=~*/<>!abi0123_";
    const char *a = seeds[kvs_rng_below(rng, sizeof seeds / sizeof seeds[0])];
    const char *b = seeds[kvs_rng_below(rng, sizeof seeds / sizeof seeds[0])];
    size_t na = strlen(a), nb = strlen(b), from = kvs_rng_below(rng, nb), len = kvs_rng_below(rng, nb - from);
    size_t at = kvs_rng_below(rng, na + 1);
    uint8_t *text = malloc(na + len + 1);
    memcpy(text, a, at);
    memcpy(text + at, b + from, len);
    memcpy(text + at + len, a + at, na - at);
    for (uint64_t k = kvs_rng_below(rng, 4); k > 0; k--)
        text[kvs_rng_below(rng, na + len)] = (uint8_t)letters[kvs_rng_below(rng, sizeof letters - 1)];
    tst_fuzz_exact(text, na + len);
    free(text);
}

int main(int argc, char **argv)
{
    return tst_fuzz_main(argc, argv, damage);
}
#endif
