/* embedded_fixture.h - the embedded fixture's inside, for tests of what only embedded discovery has.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TEST_EMBEDDED_FIXTURE_H
#define KVS_TEST_EMBEDDED_FIXTURE_H

#include "discovery_fixture.h"

void embedded_fixture_stay_away(struct participant *p); /* a member without a stream: it dials no more */
void embedded_fixture_come_back(struct participant *p);

#endif
