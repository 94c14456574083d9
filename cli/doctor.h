/* doctor.h - what the parts of `kvasir doctor` share: one line a finding, with its remedy.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_DOCTOR_H
#define KVS_CLI_DOCTOR_H

typedef enum cli_verdict { CLI_GOOD, CLI_WARNING, CLI_BAD } cli_verdict;

/* remedy "": none is needed. BAD ones make the exit code 1. */
void cli_doctor_say(cli_verdict v, const char *what, const char *finding, const char *remedy);

void cli_doctor_cluster(const char *url);                           /* a running router's view of its cluster */
void cli_doctor_etcd(const char *discovery, const char *cluster); /* etcd://HOST:PORT[,HOST:PORT] */

#endif
