/* progress.h - a progress bar on stderr: redrawn in place on a terminal, two plain lines elsewhere.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_PROGRESS_H
#define KVS_CLI_PROGRESS_H

#include "cli/cli.h"

struct cli_progress {
    const char *title;
    uint64_t total;
    bool terminal;
    bool said; /* something was written */
};
void cli_progress_begin(struct cli_progress *p, const char *title, uint64_t total);
void cli_progress_set(struct cli_progress *p, uint64_t done);
void cli_progress_end(struct cli_progress *p, const char *words); /* "ready", "failed" */
/* The bar itself, for tests: "SmolLM2 [#####.....]  50 %  46.0 of 92.0 MB". */
void cli_progress_line(const char *title, uint64_t done, uint64_t total, char *out, size_t cap);

#endif
