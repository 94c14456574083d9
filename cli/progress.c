/* progress.c - see progress.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR_CELLS 30

void cli_progress_line(const char *title, uint64_t done, uint64_t total, char *out, size_t cap)
{
    if (done > total)
        done = total; /* totals are estimates */
    double part = total ? (double)done / (double)total : 0;
    char bar[BAR_CELLS + 1];
    size_t full = (size_t)(part * BAR_CELLS);
    memset(bar, '.', BAR_CELLS);
    memset(bar, '#', full);
    bar[BAR_CELLS] = '\0';
    (void)kvs_format(out, cap, "%s [%s] %3.0f %%  %.1f of %.1f MB", title, bar, part * 100, (double)done / 1e6,
                     (double)total / 1e6);
}

void cli_progress_begin(struct cli_progress *p, const char *title, uint64_t total)
{
    *p = (struct cli_progress){.title = title, .total = total, .terminal = isatty(STDERR_FILENO) == 1};
    if (!p->terminal)
        fprintf(stderr, "kvasir: fetching %s (%.1f MB)\n", title, (double)total / 1e6);
}

void cli_progress_set(struct cli_progress *p, uint64_t done)
{
    if (!p->terminal)
        return;
    char line[160];
    cli_progress_line(p->title, done, p->total, line, sizeof line);
    fprintf(stderr, "\r%s\033[K", line);
    p->said = true;
}

void cli_progress_end(struct cli_progress *p, const char *words)
{
    if (p->said)
        fputs("\r\033[K", stderr);
    fprintf(stderr, "kvasir: %s: %s\n", p->title, words);
}
