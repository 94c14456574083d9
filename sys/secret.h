/* secret.h - the shared key of a cluster: read from a file or the environment, compared without telling how far it agrees.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_SECRET_H
#define KVS_SYS_SECRET_H

#include "base/error.h"

#define KVS_SECRET_MAX 128 /* bytes with the NUL */
#define KVS_SECRET_MIN 16  /* fewest characters */

/* The key in file (white space at its end is left out), else that of $KVASIR_AUTH, else "". A key has KVS_SECRET_MIN to KVS_SECRET_MAX - 1 visible
 * ASCII characters; anything else is KVS_SELF_CONFIG with the remedy, and out is "". */
KVS_MUST_CHECK kvs_status kvs_secret_load(const char *file, char out[KVS_SECRET_MAX], struct kvs_error *err);
/* Takes as long whatever differs; two empty keys are not equal. */
bool kvs_secret_equal(const char *a, const char *b);

#endif
