#!/usr/bin/env python3
"""cluster_bench.py - what disaggregation costs: a real cluster answers one prompt at a time, prefilled remotely and locally.

Prints TTFT of both placements and, for the remote one, the exposed transfer time (from the prefill worker's last step to the first
token possible on the decode worker) as a share of TTFT. Figures are of the machine it runs on, beside each other in one run.
Usage: cluster_bench.py BIN_DIR MODEL [--tokens N] [--requests N] [--transport auto|tcp]
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import re
import statistics
import time
import urllib.request

from bench_cluster import cluster


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=300)


def first_token_seconds(url, model, ids, placement, salt):
    """Seconds from sending the request to its first chunk."""
    begin = time.monotonic()
    with post(url + "/v1/completions", {"model": model, "prompt": ids, "max_tokens": 2, "temperature": 0, "stream": True,
                                        "cache_salt": salt, "kvasir": {"placement": placement}}) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                return time.monotonic() - begin, answer.headers.get("x-kvasir-placement", "")
    raise RuntimeError("the stream ended without a token")


def metric(url, name):
    """Sum of a series over its labels."""
    with urllib.request.urlopen(url + "/metrics", timeout=10) as page:
        text = page.read().decode()
    return sum(float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", text, re.M))


def measure(url, model, args):
    ids = [(i * 7919) % 400 + 3 for i in range(args.tokens)]
    rows = {}
    for placement in ("local", "remote"):
        first_token_seconds(url, model, ids, placement, "warm-" + placement)
        time.sleep(0.6)  # the router's page is at most half a second old
        before = metric(url, "kvasir_kv_exposed_seconds_sum"), metric(url, "kvasir_kv_transfer_bytes_total")
        times, where = [], ""
        for i in range(args.requests):
            seconds, where = first_token_seconds(url, model, ids, placement, f"{placement}-{i}")
            times.append(seconds)
        time.sleep(0.6)
        exposed = (metric(url, "kvasir_kv_exposed_seconds_sum") - before[0]) / args.requests
        moved = (metric(url, "kvasir_kv_transfer_bytes_total") - before[1]) / args.requests
        rows[placement] = statistics.mean(times), exposed, moved, where
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin_dir")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--transport", default="auto")
    args = parser.parse_args()
    with cluster(args.bin_dir, args.model, "--transport", args.transport) as url:
        rows = measure(url, "bench", args)
    print(f"cluster, {args.tokens} prompt tokens, mean of {args.requests}, one request at a time, transport {args.transport}")
    for placement, (ttft, exposed, moved, where) in rows.items():
        share = f", exposed transfer {exposed * 1e3:.2f} ms = {100 * exposed / ttft:.1f} % of TTFT, {moved / 1e6:.2f} MB moved" if placement == "remote" else ""
        print(f"  {placement:6}  TTFT {ttft * 1e3:8.1f} ms{share}")
        print(f"          {where}")


if __name__ == "__main__":
    main()
