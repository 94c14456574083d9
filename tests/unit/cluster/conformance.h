/* conformance.h - what the programs of the conformance suite share: conformance_test.c and outage_test.c are each built
 * once a backend, with CONFORM_ETCD for etcd (which skips where there is no etcd).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TEST_CONFORMANCE_H
#define KVS_TEST_CONFORMANCE_H

#include "discovery_fixture.h"

#define LONG_MS 30000u

extern const struct fixture *fx;

struct participant *join(const char *id, uint64_t epoch); /* a decode worker */
unsigned ttl_ms(unsigned halves);                         /* of the backend's lease */

int conformance_setup(void **state);
int conformance_teardown(void **state);
#define CONFORMANCE_TEST(test) cmocka_unit_test_setup_teardown(test, conformance_setup, conformance_teardown)

/* false: this program was run as something else, or there is no such backend here; it ends with *exit_code. */
bool conformance_begin(int argc, char **argv, int *exit_code);
void conformance_end(void);

#endif
