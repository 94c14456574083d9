#!/usr/bin/env python3
"""reuse_bench.py - what a prompt costs of which most is cached: cold, with its prefix in the worker that reads it, and with its prefix fetched
from another (the prefill worker). A real cluster, one request at a time; times are the router's own, from a request's arrival to its first token.

The effective rate is all prompt tokens over that time. Beside it stands what the uncached rows would take at the rate of floating-point
operations of the cold run, each row at its true context: 100 % would mean that nothing but these rows costs anything.
Usage: reuse_bench.py BIN_DIR MODEL [--tokens N] [--reuse SHARE] [--requests N] [--block-tokens N] [--check SHARE]
--check 0.85: exit code 1 when the local hit stays below that share; --check-fetched 0.85: when the fetched one does, or there was none.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import re
import subprocess
import sys
import urllib.request

from bench_cluster import cluster


def ask(url, ids, salt, **kvasir):
    """One token; the placement header as a dict."""
    body = {"model": "bench", "prompt": ids, "max_tokens": 1, "temperature": 0, "cache_salt": salt, "kvasir": {"placement": "local", **kvasir}}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.read()
        return dict(part.split("=", 1) for part in answer.headers["x-kvasir-placement"].split())


def flush(url, worker):
    urllib.request.urlopen(urllib.request.Request(f"{url}/kvasir/cache/flush/{worker}", b"{}", {"content-type": "application/json"}), timeout=60).read()


def shape_of(bin_dir, model):
    """Numbers of the model that its arithmetic depends on, from kvasir model info."""
    text = subprocess.run([bin_dir + "/kvasir", "model", "info", model], capture_output=True, text=True, check=True).stdout
    layers, width, ff = map(int, re.search(r"layers +(\d+), width (\d+), feed-forward (\d+)", text).groups())
    heads, kv_heads, key, value = map(int, re.search(r"(\d+) heads, (\d+) kv heads, key (\d+), value (\d+)", text).groups())
    vocab = int(re.search(r"vocabulary +(\d+)", text).group(1))
    return layers, width, ff, heads, kv_heads, key, value, vocab


def operations(shape, first, end):
    """Of the rows first .. end-1, each at its true context; the last row goes through the output layer."""
    layers, width, ff, heads, kv_heads, key, value, vocab = shape
    weights = width * (heads * key + kv_heads * key + kv_heads * value) + heads * value * width + 3 * width * ff
    attention = sum(2 * heads * (key + value) * (i + 1) for i in range(first, end))
    return layers * (2 * weights * (end - first) + attention) + 2 * width * vocab


def prompts(n, shared, i):
    """Two prompts that have exactly `shared` tokens in common."""
    a = [(k * 7919 + i * 104729) % 400 + 3 for k in range(n + 64)]
    return a, a[:shared] + [(t + 1 + k % 3) % 400 + 3 for k, t in enumerate(a[shared:n])]


def measure(url, args):
    """Best seconds and tokens computed, by kind. The best: other work on the machine only ever makes a run slower."""
    shared, best, computed = round(args.tokens * args.reuse), {}, {}
    ask(url, prompts(args.tokens, shared, 99)[0], "warm")

    def keep(kind, header):
        seconds = float(header["first_ms"]) / 1000
        if kind not in best or seconds < best[kind]:
            best[kind], computed[kind] = seconds, args.tokens - int(header["cached"])

    for i in range(args.requests):
        a, b = prompts(args.tokens, shared, i)
        keep("cold", ask(url, b, f"cold-{i}"))
        ask(url, a, f"local-{i}")
        keep("local", ask(url, b, f"local-{i}"))
        ask(url, a, f"fetch-{i}", placement="remote")  # now both have it
        flush(url, "decode-0")
        header = ask(url, b, f"fetch-{i}", fetch="prefill-0")
        if int(header["bytes"]) > 0:
            keep("fetched", header)
    return best, computed


def show(args, shape, best, computed):
    rate = operations(shape, 0, args.tokens) / best["cold"]
    print(f"{args.tokens} tokens, {args.reuse:.0%} shared; {rate / 1e9:.1f} GFLOP/s when nothing is cached\n")
    print("| prompt | computed | first token after | tokens/s, effective | over cold | of what the FLOPs allow |\n|---|---|---|---|---|---|")
    shares = {}
    for kind in ("cold", "local", "fetched"):
        if kind not in best:
            print(f"| {kind} | - | no request was placed so | - | - | - |")
            continue
        ideal = operations(shape, args.tokens - computed[kind], args.tokens) / rate
        shares[kind] = ideal / best[kind]
        print(f"| {kind} | {computed[kind]} | {best[kind] * 1e3:.1f} ms | {args.tokens / best[kind]:.0f} | {best['cold'] / best[kind]:.1f} x "
              f"| {shares[kind]:.0%} |")
    print("\npublished for a cluster of accelerators at 96 % reuse: 1.5 M against 60 k tokens/s, 25 x")
    return shares


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin_dir")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--reuse", type=float, default=0.96)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--check", type=float, default=0)
    parser.add_argument("--check-fetched", type=float, default=0)
    args = parser.parse_args()
    with cluster(args.bin_dir, args.model, "--context", args.tokens + 128, "--block-tokens", args.block_tokens) as url:
        shares = show(args, shape_of(args.bin_dir, args.model), *measure(url, args))
    for kind, least in ("local", args.check), ("fetched", args.check_fetched):
        if shares.get(kind, 0) < least:
            sys.exit(f"reuse_bench: a {kind} hit reaches {shares.get(kind, 0):.0%}, less than {least:.0%}")


if __name__ == "__main__":
    main()
