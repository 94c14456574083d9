#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes dequant.txt: weight blocks and their values as the PyPI packages gguf and numpy give them.

A line: type, the block's bytes in hex, and its float32 values (32 or 256) as little-endian hex; from the 13th block of a type on, to keep the
file small, only their CRC-32: "crc:", 8 hex digits. A NaN stands as 0x7fc00000 in both, since its sign and payload are nobody's promise.
Blocks are random or extreme: scales at the ends of half precision (largest, subnormal, both zeros, negative, infinite, NaN), codes and inner
scales at the ends of their range; of F16 and BF16 every exponent with both signs. Needs: pip install gguf numpy.
"""
import pathlib
import zlib
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf.quants import dequantize

BLOCKS, WHOLE = 72, 12
SCALES = [0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x03FF, 0x0400, 0x0000, 0x8000, 0x3C00, 0xBC00]
SPECIAL = [0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x7C01, 0xFDFF]
FILLS = [0xFF, 0x00, 0x80, 0x7F, 0x0F, 0xF0]
# Bytes of a block, and where its f16 scales (and minima) stand.
PARTS = {
    Q.Q8_0: (34, [0]), Q.Q4_0: (18, [0]), Q.Q4_1: (20, [0, 2]), Q.Q5_0: (22, [0]), Q.Q5_1: (24, [0, 2]), Q.IQ4_NL: (18, [0]), Q.MXFP4: (17, []),
    Q.Q2_K: (84, [80, 82]), Q.Q3_K: (110, [108]), Q.Q4_K: (144, [0, 2]), Q.Q5_K: (176, [0, 2]), Q.Q6_K: (210, [208]), Q.IQ4_XS: (136, [0]),
}


def scale_of(i, n, rng):
    """Of block i, the n-th scale: ends first, then infinities and NaNs beside ordinary ones, then any finite one of either sign."""
    if i < 30:
        return SCALES[(i * (1 + 2 * n) + n) % len(SCALES)]
    if i < 42 and (i + n) % 2 == 0:
        return SPECIAL[(i // 2 + n) % len(SPECIAL)]
    return int(rng.integers(0, 0x7C00)) | int(rng.integers(0, 2)) << 15


def blocks(kind, rng):
    size, halves = PARTS[kind]
    for i in range(BLOCKS):
        b = bytearray(bytes([FILLS[i // 2 % len(FILLS)]]) * size if i % 2 else rng.bytes(size))
        for n, at in enumerate(halves):
            b[at:at + 2] = scale_of(i, n, rng).to_bytes(2, "little")
        if kind == Q.MXFP4:
            b[0] = [0, 1, 2, 3, 127, 128, 250, 251, 252, 253, 254, 255][i] if i < 12 else int(rng.integers(0, 256))
        yield np.frombuffer(bytes(b), np.uint8)


def plain_blocks(kind, rng):
    """Lines of 32 numbers: every exponent with both signs, mantissas of all zeros, all ones, or random."""
    mantissa = 10 if kind == Q.F16 else 7
    heads = np.arange(1 << (16 - mantissa), dtype=np.uint32) << mantissa
    for low in (0, (1 << mantissa) - 1, None, None, None, None):
        tails = rng.integers(0, 1 << mantissa, len(heads), dtype=np.uint32) if low is None else low
        bits = rng.permutation(heads | tails).astype("<u2")
        for at in range(0, len(bits), 32):
            yield bits[at:at + 32].view(np.uint8 if kind == Q.BF16 else "<f2")
    while True:
        bits = rng.integers(0, 1 << 16, 32).astype("<u2")
        yield bits.view(np.uint8 if kind == Q.BF16 else "<f2")


def line(kind, block, index):
    with np.errstate(over="ignore", invalid="ignore"):
        values = dequantize(block.reshape(1, -1), kind).astype("<f4").reshape(-1)
    bits = values.view("<u4").copy()
    bits[np.isnan(values)] = 0x7FC00000
    said = bits.tobytes().hex() if index < WHOLE else f"crc:{zlib.crc32(bits.tobytes()):08x}"
    return f"{kind.name} {block.tobytes().hex()} {said}"


def main():
    rng = np.random.default_rng(20261130)
    lines = []
    for kind in (Q.F16, Q.BF16):
        made = plain_blocks(kind, rng)
        lines += [line(kind, next(made), i) for i in range(max(BLOCKS, 96 if kind == Q.BF16 else 0))]
    for kind in PARTS:
        lines += [line(kind, b, i) for i, b in enumerate(blocks(kind, rng))]
    pathlib.Path(__file__).with_name("dequant.txt").write_text("\n".join(lines) + "\n")


main()
