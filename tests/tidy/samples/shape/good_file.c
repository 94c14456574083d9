/* A file as it should be.
 * SPDX-License-Identifier: Apache-2.0 */
int x;
