# property_test.py - the property that the engine promises, for every architecture, from a seed: the same tokens and logits, bit for bit, whatever
# chunk size, block size, cut of the layers into groups, company in the batch, placement, cached prefix, fetch, eviction, preemption and resume
# happened to be. Nothing is arranged here: requests that share heads of their prompts come from several clients at once, with little memory, while
# sequences are preempted and a worker of each role is killed; what each request must say is what one process alone says. same_test.py takes the
# same paths one by one and proves each; here the counters only prove that all of them happened.
# KVASIR_PROPERTY_SEED=N: another seed (0: a fresh one, printed).
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import random
import threading

from archs_test import file_of
from kvasir_cluster import *
from same_test import LONG, SHORT, side_by_side

SEED = int(os.environ.get("KVASIR_PROPERTY_SEED", "20261130")) or random.SystemRandom().randrange(1, 1 << 31)
CASES, CLIENTS, REQUESTS, LONGEST, ANSWER = 14, 6, 72, 110, 40
COUNTED = {"preempted": "kvasir_preemptions_total", "found in caches": "kvasir_prefix_cached_tokens_total", "fetched": "kvasir_fetched_tokens_total",
           "blocks evicted": "kvasir_prefix_evicted_blocks_total", "pages": "kvasir_kv_transfer_pages_total", "resumed": "kvasir_resumed_total"}


class Case:
    """A prompt with sampling parameters, and what one process says to it."""

    def __init__(self, number, rng, heads, words, path, flags):
        self.number, head = number, rng.choice(heads)
        ids = head[:rng.randrange(1, LONGEST - 1)]
        self.ids = ids + [rng.randrange(3, words) for _ in range(rng.randrange(0, LONGEST - len(ids)))]
        self.sampling = rng.choice(({"temperature": 0}, {"temperature": 0.8, "top_p": 0.95, "seed": rng.randrange(1 << 40)}))
        sampled = [f for k, v in self.sampling.items() for f in (f"--{k.replace('_', '-')}", str(v))]
        self.want = generate_alone(path, self.ids, ANSWER, *flags, "--ignore-eos", *sampled)


def little_memory(path, shape, kv):
    """Bytes of KV memory for some three sequences of the longest kind: the rest waits, is preempted, and drives what was cached out. More where
    doctor says that one would not fit: states with many snapshots leave the other groups little."""
    def doctor(memory):
        return run(["kvasir", "doctor", "--model", path, *map(str, shape), "--kv-memory", str(memory), "--prompt", str(LONGEST + ANSWER),
                    "--listen", "127.0.0.1:0"]).stdout
    least = re.search(r"the least is (\d+) bytes", doctor("1K"))
    token = re.search(r"^kv a token +(\d+) bytes in f16", run(["kvasir", "model", "info", path]).stdout, re.M)
    grows = int(3.5 * (LONGEST + ANSWER) * int(token.group(1)) * {"f32": 2, "f16": 1, "q8_0": 0.7}[kv])
    memory = (int(least.group(1)) if least else 1024) * (2 if grows else 1) + grows
    while "give --kv-memory" in doctor(memory):
        memory = memory * 5 // 4
        assert memory < 1 << 26, f"{path} {shape}"
    return memory


class World:
    def __init__(self, name, path):
        self.name, self.rng = name, random.Random(f"{SEED} {name}")
        r, words = self.rng, 60 if name == "tiny-smollm3" else 500
        heads = [[1] + [r.randrange(3, words) for _ in range(LONGEST)] for _ in range(3)]
        heads[1][:40] = heads[0][:40]
        self.kv = r.choice(("f32", "f16", "q8_0"))
        flags = ["--context", "256", "--kv-type", self.kv]
        self.block = r.choice((4, 8, 16))
        self.shape = [*flags, "--block-tokens", self.block, "--group-layers", r.choice((0, 1) if "wide" in name else (0, 1, 2)), "--chunk-tokens", r.randrange(3, 40)]
        snapshots, reserve, sequences = r.choice((1, 2, 5)), r.randrange(1, 60), 8
        flags_too = ["--snapshot-blocks", snapshots, "--reserve-tokens", reserve, "--sequences", sequences]
        self.shape += ["--kv-memory", little_memory(path, self.shape + flags_too, self.kv)]
        self.env = {"KVASIR_KV_SNAPSHOT_BLOCKS": str(snapshots), "KVASIR_KV_RESERVE_TOKENS": str(reserve), "KVASIR_SCHED_SEQUENCES": str(sequences)}
        self.cases = [Case(i, r, heads, words, path, flags) for i in range(CASES)]
        self.lost, self.lock, self.done, self.asked = {}, threading.Lock(), 0, set()

    def ask(self, c, seed):
        r = random.Random(f"{SEED} {self.name} {seed}")
        case, place, n = r.choice(self.cases), r.choice(("local", "remote", None)), r.randrange(1, ANSWER + 1)
        more = {"logits": True, **({"placement": place} if place else {})}
        if r.random() < 0.4:
            more["fetch"] = r.choice(("decode-0", "decode-1", "prefill-0"))
        body = {"model": "m", "prompt": case.ids, "max_tokens": n, "ignore_eos": True, "return_token_ids": True, "cache_salt": r.choice("ab"),
                "kvasir": more, **case.sampling}
        answer = c.request("POST", "/v1/completions", body)
        same_as(rows_of(answer), case.want[:n], f"{self.name} {self.shape}: request {seed}, {len(case.ids)} tokens, {case.sampling}, {more}")
        with self.lock:
            self.done += 1
            if len(case.ids) > self.block:
                self.asked.add((case.number, body["cache_salt"]))

    def kill(self, c, worker):
        """Its counters begin anew with its next life."""
        m = c.metrics_now()
        for what, metric in COUNTED.items():
            self.lost[what] = self.lost.get(what, 0) + m.sum(metric, worker=worker)
        c.kill(worker)

    def run(self, path):
        often = ";".join(f"decode.preempt=error@{at}" for at in range(20, 900, 31))
        slowly = f"decode.after_token=delay:{2 * SLOW:.0f}@1+"  # so that requests stand in one batch
        with Cluster(path, *self.shape, decode=2, env={"KVASIR_FAILPOINTS_SET": f"{often};{slowly}", **self.env}) as c:
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                asked = [pool.submit(self.ask, c, i) for i in range(REQUESTS)]
                killed = self.rng.choice(("decode-0", "decode-1"))
                for at, worker in ((REQUESTS // 3, killed), (REQUESTS // 2, "prefill-0")):
                    wait_for(f"{at} requests are answered", REQUEST_SECONDS, lambda: self.done >= at or any(f.done() and f.exception() for f in asked))
                    self.kill(c, worker)
                for each in asked:
                    each.result()
            c.idle(20)
            m = c.metrics()
            groups = m.values("kvasir_kv_transfer_group_pages_total", "group")
            widest = max(m.sum("kvasir_batch_sequences_max", worker=f"decode-{i}") for i in (0, 1))
            states = sum(m.sum("kvasir_kv_pages", worker=f"decode-{i}", group="0") for i in (0, 1))
        self.seen = {what: int(m.sum(metric) + self.lost.get(what, 0)) for what, metric in COUNTED.items()}
        print(f"        {self.name} {' '.join(map(str, self.shape[2:]))}: batches to {widest:.0f}, pages of {len(groups)} groups, "
              + ", ".join(f"{n} {what}" for what, n in self.seen.items()), flush=True)
        assert widest >= 2, "no company in any batch"
        for what in ("preempted", "found in caches", "pages"):
            assert self.seen[what] > 0, f"{self.name}: {what}: none"
        # where a model has states alone their snapshots go and no block does: fewer pages are there than prompts left a snapshot
        assert self.seen["blocks evicted"] > 0 or len(self.asked) > states, f"{self.name}: nothing was driven out"


def test_the_same_whatever_happens():
    print(f"        seed {SEED}")
    worlds = []

    def one(name, path):
        worlds.append(World(name, path))
        worlds[-1].run(path)
    side_by_side(one, [("stories260K", need(STORIES, "stories260K"))] + [(n, file_of(n)) for n in LONG + SHORT], 3)
    for what in COUNTED:
        got = [w.name for w in worlds if w.seen[what] > 0]
        assert len(got) >= len(worlds) / 2, f"{what}: only with {got}"


if __name__ == "__main__":
    main()
