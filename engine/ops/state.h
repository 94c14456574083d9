/* state.h - what the recurrent ops work on: a causal convolution and two scans, over the rows of one sequence in order.
 *
 * Both carry a state from row to row, and from step to step: the caller points `state` into the sequence's state page,
 * where it is read and left as it stands after the last row. Channels are the lanes, state dims lie behind each other
 * ([state_size][channels]), so a channel's sum over its state is one chain and channels may be dealt out freely: a range
 * of channels touches its own part of the state and of y only. Cutting rows into steps changes no bit.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_OPS_STATE_H
#define KVS_ENGINE_OPS_STATE_H

#include <stddef.h>
#include <stdint.h>

#define ENG_CONV_MAX 8u    /* kernel length */
#define ENG_STATE_MAX 256u /* state_size */

/* y = silu(bias + sum of weight[j] * x[row - kernel + 1 + j]), channel by channel. */
struct eng_conv {
    float *state;        /* [kernel - 1][channels]: the last inputs, oldest first */
    const float *weight; /* [kernel][channels] */
    const float *bias;   /* [channels], or NULL */
    uint32_t kernel, channels, rows;
    const float *x;
    float *y; /* may be x */
    size_t x_stride, y_stride;
};

/* state = state * exp(dt * a) + b * (x * dt);  y = sum of state * c over the state dims, + d * x. */
struct eng_scan {
    float *state; /* [state_size][channels] */
    uint32_t state_size, channels, rows;
    uint32_t head_dim;        /* scan_heads: channels of a head, which share dt, a and d */
    uint32_t heads_per_group; /* scan_heads: heads that share b and c */
    const float *a;           /* scan: [state_size][channels]; scan_heads: [heads] */
    const float *d;           /* scan: [channels]; scan_heads: [heads] */
    const float *x, *dt;      /* dt after softplus: scan: a channel; scan_heads: a head */
    const float *b, *c;       /* [row][group][state_size] */
    float *y;                 /* may be x */
    size_t x_stride, dt_stride, bc_stride, y_stride;
};

#endif
