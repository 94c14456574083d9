/* Twice.
 * SPDX-License-Identifier: Apache-2.0 */
/* Again.
 * SPDX-License-Identifier: Apache-2.0 */
