#!/usr/bin/env python3
"""Writes unicode_ranges.inc: runs of characters with the same classes, from Python's unicodedata (Unicode's own database).

    python3 model/unicode_ranges.py > model/unicode_ranges.inc

White space is the property White_Space, which the original tokenizers' regular expressions mean by \\s.
SPDX-License-Identifier: Apache-2.0
"""
import unicodedata

SPACES = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def classes(cp):
    c = unicodedata.category(chr(cp))
    bits = {"L": 1, "N": 2, "P": 8, "S": 16, "M": 32}.get(c[0], 0)
    if cp in SPACES:
        bits |= 4
    if c in ("Lu", "Lt", "Lm", "Lo") or c[0] == "M":
        bits |= 64
    if c in ("Ll", "Lm", "Lo") or c[0] == "M":
        bits |= 128
    return bits


runs, last = [], None
for cp in range(0x110000):
    bits = classes(cp)
    if bits != last:
        runs.append((cp, bits))
        last = bits
print(f"// Unicode {unicodedata.unidata_version}, made by unicode_ranges.py: first character of a run, its classes (enum mdl_char).")
line = ""
for first, bits in runs:
    word = f"{{0x{first:x}, {bits}}}, "
    if len(line) + len(word) > 118:
        print(line.rstrip())
        line = ""
    line += word
print(line.rstrip())
