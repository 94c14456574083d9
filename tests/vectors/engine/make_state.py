#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes state.txt: recurrent ops computed by NumPy in double precision, by formulas that have no recurrence in them.

A scan is written as the sum over all earlier rows of what each left behind, weighed by the exponential of the summed
steps between (the "attention" form of a state-space model); a convolution as a dot product with a padded window. A line
is a word and its numbers: sizes first, then inputs (rounded to float32) and expected outputs, row after row.
"""
import numpy as np

rng = np.random.default_rng(7)


def f32(*shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def line(word, sizes, *arrays):
    numbers = [format(float(np.float32(v)), ".9g") for a in arrays for v in np.asarray(a).reshape(-1)]
    print(word, *sizes, *numbers)


def softplus():
    x = np.concatenate([np.linspace(-95, 95, 39), f32(25, scale=3)]).astype(np.float32)
    bias = f32(x.size)
    line("softplus", [x.size], x, bias, np.logaddexp(0, x.astype(float) + bias))


def conv(kernel, channels, rows, with_bias):
    past, x, w, b = f32(kernel - 1, channels), f32(rows, channels), f32(kernel, channels), f32(channels)
    b *= with_bias
    long = np.concatenate([past, x]).astype(float)
    y = np.stack([(long[t:t + kernel] * w).sum(0) for t in range(rows)]) + b
    line("conv", [kernel, channels, rows, with_bias], past, x, w, b, y / (1 + np.exp(-y)), long[rows:])


def decays(a, dt, first, last):
    """exp of the steps after row `first` up to row `last`, times a; first -1: the state before."""
    return np.exp(dt[first + 1:last + 1].astype(float).sum(0) * a)


def scan(channels, size, rows):
    state, x, dt = f32(size, channels), f32(rows, channels), np.abs(f32(rows, channels, scale=0.5))
    a, d, b, c = -np.abs(f32(size, channels)) - np.float32(0.1), f32(channels), f32(rows, size), f32(rows, size)
    u = x.astype(float) * dt

    def state_at(t):
        s = state * decays(a, dt, -1, t)
        for r in range(t + 1):
            s = s + decays(a, dt, r, t) * b[r][:, None] * u[r]
        return s

    y = np.stack([(state_at(t) * c[t][:, None]).sum(0) + d * x[t] for t in range(rows)])
    line("scan", [channels, size, rows], state, x, dt, a, d, b, c, y, state_at(rows - 1))


def heads(count, dim, share, size, rows):
    groups, channels = count // share, count * dim
    state, x, dt = f32(size, channels), f32(rows, channels), np.abs(f32(rows, count, scale=0.5))
    a, d = -np.abs(f32(count)) - np.float32(0.1), f32(count)
    b, c = f32(rows, groups, size), f32(rows, groups, size)

    def state_of(h, t):
        s = state[:, h * dim:(h + 1) * dim] * decays(a[h], dt[:, h], -1, t)
        for r in range(t + 1):
            s = s + decays(a[h], dt[:, h], r, t) * np.outer(b[r, h // share], x[r, h * dim:(h + 1) * dim] * float(dt[r, h]))
        return s

    y = np.stack([np.concatenate([c[t, h // share].astype(float) @ state_of(h, t) + d[h] * x[t, h * dim:(h + 1) * dim]
                                  for h in range(count)]) for t in range(rows)])
    last = np.concatenate([state_of(h, rows - 1) for h in range(count)], axis=1)
    line("heads", [count, dim, share, size, rows], state, x, dt, a, d, b, c, y, last)


softplus()
conv(4, 11, 5, 1)
conv(3, 9, 1, 0)
scan(11, 4, 5)
scan(9, 3, 1)
heads(4, 10, 2, 3, 5)
heads(2, 33, 2, 2, 3)
