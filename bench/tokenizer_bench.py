#!/usr/bin/env python3
"""Text to ids, beside other tokenizers on the same text and vocabulary, one core each; their ids have to equal ours.

    python3 bench/tokenizer_bench.py PROGRAM VOCABULARY.gguf TEXT

PROGRAM is tokenizer_bench. tiktoken and tokenizers are built from the GGUF's own tokens and merges (packages gguf, tiktoken, tokenizers from
PyPI; what is not installed is left out and said). Only byte-level BPE with the gpt-2 way of cutting is compared.
SPDX-License-Identifier: Apache-2.0
"""
import array
import os
import subprocess
import sys
import tempfile
import time

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


def spelled():
    """GPT-2's spelling of bytes: printable Latin-1 for itself, the others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def vocabulary(path):
    from gguf import GGUFReader
    field = GGUFReader(path).fields
    strings = lambda key: [bytes(field[key].parts[i]).decode("utf-8") for i in field[key].data]
    return strings("tokenizer.ggml.tokens"), strings("tokenizer.ggml.merges")


def best(encode, text, repeat=3):
    least, ids = 1e9, None
    for _ in range(repeat):
        begin = time.process_time()
        ids = encode(text)
        least = min(least, time.process_time() - begin)
    return len(text.encode()) / least / 1e6, ids


def tiktoken_encoder(tokens, merges):
    import tiktoken
    byte_of = {c: b for b, c in spelled().items()}
    ranks = {}
    for i, token in enumerate(tokens):
        if all(c in byte_of for c in token):
            ranks[bytes(byte_of[c] for c in token)] = i
    return tiktoken.Encoding("gpt-2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}).encode_ordinary


def tokenizers_encoder(tokens, merges):
    from tokenizers import Tokenizer, models, pre_tokenizers
    vocab = {token: i for i, token in enumerate(tokens)}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ", 1)) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return lambda text: t.encode(text, add_special_tokens=False).ids


def main():
    program, vocab, path = sys.argv[1:4]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    text = open(path, encoding="utf-8", newline="").read()
    with tempfile.TemporaryDirectory() as d:
        ids_path = os.path.join(d, "ids")
        print(subprocess.run([program, vocab, path, "--ids", ids_path], check=True, stdout=subprocess.PIPE, text=True).stdout, end="")
        ours = array.array("i")
        ours.frombytes(open(ids_path, "rb").read())
    failed = False
    try:
        tokens, merges = vocabulary(vocab)
    except (ImportError, KeyError) as e:
        print(f"nothing to compare with: {e!r} (pip install gguf tiktoken tokenizers)")
        return
    for name, make in (("tiktoken", tiktoken_encoder), ("tokenizers", tokenizers_encoder)):
        try:
            speed, ids = best(make(tokens, merges), text)
        except ImportError as e:
            print(f"{name}: left out: {e}")
            continue
        same = list(ours) == list(ids)
        failed |= not same
        print(f"{name}: {speed:.1f} MB/s, ids {'equal ours' if same else 'DIFFER from ours'}")
    sys.exit(1 if failed else 0)


main()
