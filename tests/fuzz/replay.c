/* replay.c - the main program of every fuzz target that is built without libFuzzer.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/replay.h"
#include "tests/support/files.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void tst_fuzz_exact(const void *bytes, size_t n)
{
    uint8_t *exact = malloc(n > 0 ? n : 1);
    if (exact == NULL)
        abort();
    if (n > 0)
        memcpy(exact, bytes, n);
    (void)LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

static void damaged(bool seconds, long limit, uint64_t seed, tst_damage_fn damage)
{
    struct kvs_rng rng = {seed};
    time_t begin = time(NULL);
    long runs = 0;
    while (seconds ? time(NULL) - begin < limit : runs < limit) {
        damage(&rng);
        runs++;
    }
    (void)printf("seed %llu: %ld runs\n", (unsigned long long)seed, runs);
}

int tst_fuzz_main(int argc, char **argv, tst_damage_fn damage)
{
    if (argc >= 3 && (strcmp(argv[1], "-n") == 0 || strcmp(argv[1], "-t") == 0)) {
        damaged(argv[1][1] == 't', strtol(argv[2], NULL, 10), argc > 3 ? strtoull(argv[3], NULL, 10) : 1, damage);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        size_t size = 0;
        uint8_t *bytes = tst_file_read(argv[i], 0, &size);
        if (bytes == NULL) {
            (void)fprintf(stderr, "cannot read %s\n", argv[i]);
            return 1;
        }
        tst_fuzz_exact(bytes, size);
        free(bytes);
    }
    return 0;
}
