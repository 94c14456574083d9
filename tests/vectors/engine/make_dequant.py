#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes dequant.txt: weight blocks and their values as the PyPI packages gguf and numpy give them.

A line: type, the block's bytes in hex, its float32 values (32 or 256) as little-endian hex. Blocks are random or extreme:
scales at the ends of half precision (largest, subnormal, both zeros, negative), codes and inner scales at the ends of their
range. Needs: pip install gguf numpy.
"""
import pathlib
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf.quants import dequantize

SCALES = [0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x03FF, 0x0400, 0x0000, 0x8000, 0x3C00, 0xBC00]


def half(bits):
    return int(bits).to_bytes(2, "little")


def blocks(kind, rng):
    codes = {Q.Q8_0: 32, Q.Q4_0: 16, Q.Q4_1: 16}[kind]
    fills = [bytes([0x80] * codes), bytes([0x7F] * codes), bytes([0x0F] * codes), bytes([0xF0] * codes), bytes(codes)]
    for i in range(20):
        head = half(SCALES[i]) if i < len(SCALES) else half(rng.integers(0, 0x7C00) | int(rng.integers(0, 2)) << 15)
        if kind == Q.Q4_1:
            head += half(SCALES[(i * 3 + 1) % len(SCALES)]) if i < 14 else half(rng.integers(0, 0x7C00))
        yield head + (fills[i % 5] if i % 2 else rng.bytes(codes))


# Of the types with more parts: bytes of a block, and where its f16 scales (and minima) stand.
PARTS = {
    Q.Q5_0: (22, [0]), Q.Q5_1: (24, [0, 2]), Q.IQ4_NL: (18, [0]), Q.MXFP4: (17, []),
    Q.Q2_K: (84, [80, 82]), Q.Q3_K: (110, [108]), Q.Q4_K: (144, [0, 2]), Q.Q5_K: (176, [0, 2]), Q.Q6_K: (210, [208]),
    Q.IQ4_XS: (136, [0]),
}
EXPONENTS = [0, 1, 2, 3, 127, 128, 250, 251, 254, 255, 120, 130]


def more_blocks(kind, rng):
    size, halves = PARTS[kind]
    fills = [0xFF, 0x00, 0x80, 0x7F, 0x0F, 0xF0]
    for i in range(8 if size > 32 else 20):
        b = bytearray(bytes([fills[i // 2 % len(fills)]]) * size if i % 2 else rng.bytes(size))
        for n, at in enumerate(halves):
            pick = SCALES[(i * (1 + 2 * n) + n) % len(SCALES)] if i < 14 else rng.integers(0, 0x7C00)
            b[at:at + 2] = half(pick)
        if kind == Q.MXFP4:
            b[0] = EXPONENTS[i % len(EXPONENTS)]
        yield bytes(b)


def main():
    rng = np.random.default_rng(20261129)
    lines = []
    for kind in (Q.Q8_0, Q.Q4_0, Q.Q4_1):
        for b in blocks(kind, rng):
            values = dequantize(np.frombuffer(b, np.uint8).reshape(1, -1), kind).astype("<f4")
            lines.append(f"{kind.name} {b.hex()} {values.tobytes().hex()}")
    for kind in (Q.F16, Q.BF16):
        bits = rng.integers(0, 0x7C00, 32).astype("<u2") | (rng.integers(0, 2, 32).astype("<u2") << 15)
        bits[: len(SCALES)] = SCALES
        b = bits.astype("<u2").tobytes()
        values = dequantize(np.frombuffer(b, np.uint8).reshape(1, -1) if kind == Q.BF16 else np.frombuffer(b, "<f2").reshape(1, -1), kind)
        lines.append(f"{kind.name} {b.hex()} {values.astype('<f4').tobytes().hex()}")
    for kind in PARTS:
        for b in more_blocks(kind, rng):
            with np.errstate(over="ignore"):
                values = dequantize(np.frombuffer(b, np.uint8).reshape(1, -1), kind).astype("<f4")
            lines.append(f"{kind.name} {b.hex()} {values.tobytes().hex()}")
    pathlib.Path(__file__).with_name("dequant.txt").write_text("\n".join(lines) + "\n")


main()
