/* embedded_router.h - embedded discovery's server as a process of its own, so that it can be stopped, killed and started again as a router is:
 * the test program runs itself once more with embedded_router_word as its first argument.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TEST_EMBEDDED_ROUTER_H
#define KVS_TEST_EMBEDDED_ROUTER_H

#define embedded_router_word "--embedded-router"

int embedded_router_main(char **argv); /* that program's: URL, epoch, descriptor to write a byte to when it listens */

#endif
