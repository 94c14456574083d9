#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes quantize.txt: 32 float32 weights and the block that the PyPI package gguf makes of them.

A line: type, the weights as little-endian hex, the block's bytes in hex. Weights are random of many sizes, or extreme: all zero, all
equal, one peak, halves between two codes, scales that vanish in half precision. Needs: pip install gguf numpy.
"""
import pathlib
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf.quants import quantize


def cases(rng):
    for size in (1.0, 0.02, 3000.0, 1e-6, 1e-9, 1e-30):
        yield rng.standard_normal(32) * size
    yield np.zeros(32)
    yield np.full(32, -0.0)
    yield np.full(32, 1.25)
    yield np.full(32, -1.25)
    peak = np.zeros(32)
    peak[17] = -4.0
    yield peak
    yield -peak
    yield (np.arange(32) - 16) / 2  # Q4_0 halves
    yield np.concatenate([[127.0, -127.0], np.arange(30) - 14.5])  # Q8_0 halves
    yield np.arange(32) / 2
    yield np.concatenate([[8.0, -8.0], rng.integers(-8, 9, 30)])
    yield rng.uniform(2, 3, 32)


def main():
    rng = np.random.default_rng(20261130)
    lines = []
    for kind in (Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.F16, Q.BF16, Q.MXFP4):
        for x in cases(rng):
            x = x.astype("<f4").reshape(1, 32)
            block = x.astype("<f2") if kind == Q.F16 else quantize(x, kind)
            lines.append(f"{kind.name} {x.tobytes().hex()} {block.tobytes().hex()}")
    pathlib.Path(__file__).with_name("quantize.txt").write_text("\n".join(lines) + "\n")


main()
