#!/usr/bin/env python3
"""mooncake_replay.py - real chat traffic (the Mooncake conversation trace, FAST'25) through real daemons: block hashes become token ids, lengths
are 1:64 of the trace's (its blocks of 512 tokens are ours of 8), time runs faster, answers are a few tokens. What a prompt shares with those
before it is shared token by token.

Two ways to place, with the same workers and the same cache each: by the router (one cluster), and round robin (each worker is a cluster of its
own, and requests go to them in turn). Beside them the ceiling: what one cache without bounds would have found that knows a prompt the moment
it comes. Hits are counted by the workers (kvasir_prefill_tokens_total), not predicted. `mooncake_bench` replays the whole hour in virtual time.
Usage: mooncake_replay.py BIN_DIR MODEL [--trace FILE] [--requests N] [--workers N] [--faster N] [--kv-memory SIZE] [--check SHARE]
--check 0.9: exit code 1 when placing by the router finds less than that share of the ceiling, or not more than round robin.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import statistics
import sys
import time
import urllib.parse
import urllib.request

from bench_cluster import cluster

SCALE, BLOCK = 64, 8
VOCABULARY = 480  # ids from 3 on: every model has these


def read_trace(path, count):
    """[(seconds, ids)]: the ids of a block follow from its hash alone."""
    rows, known = [], {}
    with open(path) as f:
        for line, _ in zip(f, range(count)):
            row = json.loads(line)
            ids = []
            for h in row["hash_ids"]:
                if h not in known:
                    known[h] = [(h * 2654435761 + k * 40503 + (h >> 3) * (k + 1) * 97) % VOCABULARY + 3 for k in range(BLOCK)]
                    known[h][0], known[h][1] = h % VOCABULARY + 3, h // VOCABULARY % VOCABULARY + 3
                ids += known[h]
            rows.append((row["timestamp"] / 1000, ids[:max(1, (row["input_length"] + SCALE - 1) // SCALE)]))
    return rows


def ceiling(rows):
    """Tokens that need not be computed: whole blocks that were there before, and never the last token."""
    known, found = set(), 0
    for _, ids in rows:
        hit = True
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            name = hash(tuple(ids[:end]))
            hit = hit and name in known
            found += BLOCK if hit and end < len(ids) else 0
            known.add(name)
    return found


def computed(url):
    page = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode()
    return sum(float(m) for m in re.findall(r'^kvasir_prefill_tokens_total\{[^}]*worker="[^}]*\} (\S+)$', page, re.M))


def ask(url, ids, due):
    """Seconds from when it was due to the end of its answer; the answer has one token."""
    where = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=300)
    connection.request("POST", "/v1/completions", json.dumps({"model": "bench", "prompt": ids, "max_tokens": 1, "temperature": 0}),
                       {"content-type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        sys.exit(f"mooncake_replay: {answer.status}: {body[:300]}")
    return time.monotonic() - due


def replay(rows, urls, faster):
    before = sum(computed(u) for u in urls)
    begin, waits = time.monotonic() + 0.2, []
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        jobs = []
        for i, (at, ids) in enumerate(rows):
            due = begin + (at - rows[0][0]) / faster
            time.sleep(max(0, due - time.monotonic()))
            jobs.append(pool.submit(ask, urls[i % len(urls)], ids, due))
        waits = [j.result() for j in jobs]
    seconds = time.monotonic() - begin
    time.sleep(0.7)  # the router's page is at most half a second old
    return sum(computed(u) for u in urls) - before, waits, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin_dir")
    parser.add_argument("model")
    parser.add_argument("--trace", default=os.path.join(os.path.dirname(__file__), "../../shared/data/traces/mooncake_conversation.jsonl"))
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--faster", type=float, default=10)
    parser.add_argument("--kv-memory", default="64M")
    parser.add_argument("--check", type=float, default=0)
    args = parser.parse_args()
    for file in args.trace, args.model:
        if not os.path.exists(file):
            print(f"mooncake_replay: {file} is absent: skipped")
            sys.exit(77)
    rows = read_trace(args.trace, args.requests)
    total, most = sum(len(ids) for _, ids in rows), ceiling(rows)
    longest = max(len(ids) for _, ids in rows)
    flags = ["--prefill", 0, "--block-tokens", BLOCK, "--context", longest + 64, "--kv-memory", args.kv_memory, "--threads", 1]
    print(f"{len(rows)} requests, {total} prompt tokens, {args.workers} workers with {args.kv_memory} of KV, {args.faster:g} times as fast as it was\n")
    print("| placement | not computed | of the ceiling | answer after, mean | median | 99 % | seconds |\n|---|---|---|---|---|---|---|")
    found = {}
    for way in ("round robin", "placed"):
        with contextlib.ExitStack() as stack:
            alone = way == "round robin"
            urls = [stack.enter_context(cluster(args.bin_dir, args.model, "--decode", 1 if alone else args.workers, *flags))
                    for _ in range(args.workers if alone else 1)]
            done, waits, seconds = replay(rows, urls, args.faster)
        found[way] = (total - done) / most
        waits.sort()
        print(f"| {way} | {(total - done) / total:.1%} | {found[way]:.0%} | {statistics.mean(waits):.3f} s | {waits[len(waits) // 2]:.3f} s "
              f"| {waits[len(waits) * 99 // 100]:.3f} s | {seconds:.0f} |", flush=True)
    print(f"| ceiling | {most / total:.1%} | 100% | | | | |")
    if args.check and (found["placed"] < args.check or found["placed"] <= found["round robin"]):
        sys.exit(f"mooncake_replay: {found['placed']:.0%} of the ceiling")


if __name__ == "__main__":
    main()
