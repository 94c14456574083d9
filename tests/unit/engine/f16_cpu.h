/* f16_cpu.h - the processor's own half-precision conversions, as something to compare with.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_ENGINE_F16_CPU_H
#define KVS_TESTS_ENGINE_F16_CPU_H

#include <stdint.h>

uint32_t f16_cpu_widen(uint16_t h);
uint16_t f16_cpu_narrow(uint32_t bits);

#endif
