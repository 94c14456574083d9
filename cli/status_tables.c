/* status_tables.c - the tables of `kvasir status` below the workers: what is cached, what steps and links take, how the last requests were
 * placed and why.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/cluster_view.h"

#include <stdio.h>
#include <string.h>

#define PLACEMENTS_SHOWN 6

static const char *text_of(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(o, key));
    return v && v[0] ? v : "-";
}

static double number_of(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void print_cache(const json_t *view)
{
    const json_t *w, *router = json_object_get(view, "router");
    size_t i;
    puts("\ncache        tokens cached  pages cached of all");
    json_array_foreach(json_object_get(view, "workers"), i, w)
    {
        const json_t *first = json_array_get(json_object_get(w, "pages"), 0);
        double cached = number_of(first, "cached"), total = number_of(first, "total");
        printf("%-12s %13.0f  %6.0f of %.0f (%.0f %%)\n", text_of(w, "id"), cached * number_of(w, "block_tokens"), cached, total,
               total > 0 ? 100 * cached / total : 0);
    }
    printf("router's index: %.0f blocks in %.1f MB, %.0f dropped for want of room\n", number_of(router, "index_blocks"),
           number_of(router, "index_bytes") / 1e6, number_of(router, "index_dropped"));
}

static void print_speed(const json_t *w)
{
    const json_t *s = json_object_get(w, "speed"), *p;
    double token = number_of(s, "prefill_token_s") + number_of(s, "prefill_pair_s") * 256; /* in the middle of 512 tokens */
    size_t i;
    printf("%-12s ", text_of(w, "id"));
    if (number_of(s, "prefill_samples") > 0 && token > 0)
        printf("%9.0f tokens/s  ", 1 / token);
    else
        printf("%18s  ", "not measured");
    if (number_of(s, "step_samples") > 0)
        printf("%7.2f ms, 8: %7.2f ms", 1e3 * (number_of(s, "step_fixed_s") + number_of(s, "step_sequence_s")),
               1e3 * (number_of(s, "step_fixed_s") + 8 * number_of(s, "step_sequence_s")));
    else
        printf("%23s", "not measured");
    json_array_foreach(json_object_get(w, "peers"), i, p)
    {
        double byte_s = number_of(p, "byte_s");
        if (number_of(p, "samples") > 0)
            printf("  %s %s %.1f ms", text_of(p, "id"), text_of(p, "transport"), 1e3 * number_of(p, "latency_s"));
        if (number_of(p, "samples") > 0 && byte_s > 1e-12)
            printf(" + %.2f GB/s", 1e-9 / byte_s);
    }
    putchar('\n');
}

static void print_option(const json_t *o, bool chosen)
{
    char where[200];
    if (strcmp(text_of(o, "prefill"), text_of(o, "decode")) != 0)
        (void)kvs_format(where, sizeof where, "%s > %s", text_of(o, "prefill"), text_of(o, "decode"));
    else if (strcmp(text_of(o, "fetch"), "-") != 0)
        (void)kvs_format(where, sizeof where, "%s, fetch from %s", text_of(o, "decode"), text_of(o, "fetch"));
    else
        (void)kvs_format(where, sizeof where, "%s", text_of(o, "decode"));
    printf("  %-6s %-36s %9.1f ms = queue %.1f + fetch %.1f + prefill %.1f + exposed %.1f; cached %.0f, step %.1f%s%s\n", chosen ? "taken" : "or", where,
           1e3 * number_of(o, "ttft_s"), 1e3 * number_of(o, "queue_s"), 1e3 * number_of(o, "fetch_s"), 1e3 * number_of(o, "prefill_s"),
           1e3 * number_of(o, "exposed_s"), number_of(o, "cached"), 1e3 * number_of(o, "step_s"),
           json_is_true(json_object_get(o, "slow")) ? "; streams over their target" : "",
           json_is_true(json_object_get(o, "suspect")) ? "; suspect" : "");
}

static void print_placement(const json_t *row)
{
    const json_t *o;
    size_t i;
    printf("%s, %.1f s ago: prompt of %.0f tokens, %.0f cached, %s; first token after %.1f ms, predicted %.1f\n", text_of(row, "request"),
           number_of(row, "age_s"), number_of(row, "prompt_tokens"), number_of(row, "cached"), text_of(row, "mode"),
           1e3 * number_of(row, "measured_s"), 1e3 * number_of(row, "predicted_s"));
    json_array_foreach(json_object_get(row, "candidates"), i, o)
    {
        print_option(o, i == 0);
    }
}

void cli_misfit_text(const json_t *misfit, char *out, size_t cap)
{
    (void)kvs_format(out, cap, "%s of model %s, %.0f s ago: %s is \"%s\" there and \"%s\" at %s", text_of(misfit, "id"), text_of(misfit, "model"),
                     number_of(misfit, "age_s"), text_of(misfit, "field"), text_of(misfit, "value"), text_of(misfit, "other_value"),
                     text_of(misfit, "other"));
}

void cli_status_tables(const json_t *view)
{
    const json_t *row, *w;
    char text[600];
    size_t i;
    json_array_foreach(json_object_get(view, "misfits"), i, row)
    {
        cli_misfit_text(row, text, sizeof text);
        printf("%s%s\n", i == 0 ? "\ncame and did not fit\n" : "", text);
    }
    print_cache(view);
    printf("\n%-12s %18s  %-23s  links from others (latency + rate)\n", "speed", "prefill", "a step with 1, 8");
    json_array_foreach(json_object_get(view, "workers"), i, w)
    {
        print_speed(w);
    }
    if (json_array_size(json_object_get(view, "placements")) > 0)
        puts("\nlast placements");
    json_array_foreach(json_object_get(view, "placements"), i, row)
    {
        if (i < PLACEMENTS_SHOWN)
            print_placement(row);
    }
}
