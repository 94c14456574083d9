# memory_test.py - what `kvasir doctor` predicts from a model's header is what workers take: a prompt of 32,768 tokens, read by a prefill worker and
# shipped to a decode worker, for models of every kind of cache and of scaled rotation. The peak of each worker (VmHWM) stays below the prediction,
# which is no empty promise: it is not far above what is seen. The answer is that of one process, and the pages that travelled, and those that were
# held at any time, are counted: pages of a window that has passed are given back while the prompt is still being read.
# Attention over such a prompt is quadratic; models whose layers all see everything are cut to one layer (a rewritten header, the same tensors).
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import random
import struct
import tempfile

from kvasir_cluster import *
from placement_test import Delta

RANDOM = os.path.join(SHARED, "models", "random")
TOKENS = 32768 if SLOW == 1 else 2048  # sanitizers: the same paths, another memory
ANSWER, BLOCK = 4, 64
HOLD = tempfile.TemporaryDirectory(prefix="kvasir-memory-")
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of the metadata's kinds, but text (8) and lists (9)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def u32(self):
        return struct.unpack("<I", self.take(4))[0]

    def u64(self):
        return struct.unpack("<Q", self.take(8))[0]

    def text(self):
        return self.take(self.u64())

    def skip_value(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, n = self.u32(), self.u64()
            for _ in range(n):
                self.skip_value(inner)
        else:
            self.take(SIZES[kind])


def first_layers(path, layers):
    """A copy of a GGUF file with its first layers only: the count in the header, and the tensors of the others left out of the table."""
    with open(path, "rb") as f:
        r = Reader(f.read())
    magic, version, tensors, keys = r.take(4), r.u32(), r.u64(), r.u64()
    assert magic == b"GGUF" and version == 3
    head = b""
    for _ in range(keys):
        begin, name, kind = r.at, r.text(), r.u32()
        value = r.at
        r.skip_value(kind)
        if name.endswith(b".block_count"):
            assert kind == 4
            head += r.data[begin:value] + struct.pack("<I", layers)
        else:
            head += r.data[begin:r.at]
    kept = []
    for _ in range(tensors):
        begin, name = r.at, r.text()
        r.take(8 * r.u32() + 4)
        described = r.data[begin:r.at]
        offset = r.u64()
        m = re.match(rb"blk\.(\d+)\.", name)
        kept.append((offset, described, not m or int(m.group(1)) < layers))
    data = -(-r.at // 32) * 32
    ends = [o for o, _, _ in kept[1:]] + [len(r.data) - data]
    table, body = b"", b""
    for (offset, described, keep), end in zip(kept, ends):
        if keep:
            table += described + struct.pack("<Q", len(body))
            body += r.data[data + offset:data + end]
            body += bytes(-len(body) % 32)
    out = b"GGUF" + struct.pack("<IQQ", 3, sum(k for _, _, k in kept), keys) + head + table
    out += bytes(-len(out) % 32) + body
    cut = os.path.join(HOLD.name, f"{layers}-{os.path.basename(path)}")
    with open(cut, "wb") as f:
        f.write(out)
    return cut


def doctor(model, *flags, code=0):
    r = run(["kvasir", "doctor", "--model", model, "--listen", "127.0.0.1:0", *map(str, flags)])
    assert r.returncode == code, r.stdout + r.stderr
    parts = {k.strip(): float(v) * 1e6 for k, v in re.findall(r"^ {9}(\S+(?: \d+)?) +([\d.]+) MB", r.stdout, re.M)}
    groups = [(kind, int(held), int(touched)) for kind, held, touched in
              re.findall(r"MB   (full|window|latent|state)[a-z ]*, layers .*: (\d+) pages held, (\d+) touched", r.stdout)]
    return parts, groups, r.stdout


def peak(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read()).group(1)) * 1024


class Held:
    """Most pages of each group that a worker held, and those it held or cached, at any look at its own metrics."""

    def __init__(self, cluster, worker):
        url = next(w["http_url"] for w in cluster.status()["workers"] if w["id"] == worker)
        self.at = url.split("//", 1)[1].rstrip("/")
        self.held, self.touched, self.looks = {}, {}, 0

    def look(self):
        c = http.client.HTTPConnection(self.at, timeout=30 * SLOW)
        try:
            c.request("GET", "/metrics")
            m = Metrics(c.getresponse().read().decode())
        finally:
            c.close()
        self.looks += 1
        for g in m.values("kvasir_kv_pages", "group"):
            held = m.get("kvasir_kv_pages", group=g, state="held")
            self.held[g] = max(self.held.get(g, 0), held)
            self.touched[g] = max(self.touched.get(g, 0), held + m.get("kvasir_kv_pages", group=g, state="cached"))


def pages_sent(kind, window, tokens):
    """What travels of a group: whole blocks of keys or latents; of a window what going on needs, also from the last whole block that can be
    reused; of a state the last one and the snapshot there."""
    blocks, reused = -(-tokens // BLOCK), (tokens - 1) // BLOCK * BLOCK
    return {"window": blocks - max(0, reused - window) // BLOCK, "state": 2}.get(kind, blocks)


def check_answer(name, c, model, flags, tokens):
    """The prompt through both workers, and meanwhile through one process; what prefill-0 held is looked at all the while."""
    r = random.Random(9)
    ids = [r.randrange(3, 99) for _ in range(tokens)]
    looks = {w: Held(c, w) for w in ("prefill-0", "decode-0")}
    before = c.metrics()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = pool.submit(c.complete, ids, ANSWER, "remote", 600 * SLOW, ignore_eos=True)
        alone = pool.submit(generate_alone, model, ids, ANSWER, *flags, "--threads", "1", "--ignore-eos", seconds=600)
        while not asked.done():
            for held in looks.values():
                held.look()
            concurrent.futures.wait([asked], 0.05)
        answer = asked.result()
        same_as(rows_of(answer), alone.result(), name)
    assert answer.placement()["mode"] == "remote", answer.placement()
    c.idle()
    looks["prefill-0"].look()
    looks["decode-0"].look()
    return looks, Delta(before, c.metrics())


def check_peaks(name, parts, ready, peaks, small):
    predicted, seen = parts["peak"], max(peaks.values())
    kv = sum(v for k, v in parts.items() if k.startswith("KV "))
    print(f"        {name}: predicted {predicted / 1e6:.1f} MB, seen " +
          ", ".join(f"{w} {peaks[w] / 1e6:.1f} ({ready[w] / 1e6:.1f} when ready)" for w in peaks))
    if SLOW != 1:
        return
    assert seen <= predicted, f"{name}: a worker took {seen:.0f} bytes, not at most {predicted:.0f}"
    assert predicted <= 1.35 * seen, f"{name}: {predicted:.0f} bytes predicted, {seen:.0f} seen"
    grown = {w: peaks[w] - ready[w] for w in peaks}
    assert grown["prefill-0"] >= 0.9 * kv, f"{name}: the prompt took {grown['prefill-0']} bytes, its pages have {kv:.0f}"
    most = parts["KV"] + parts["books"] + parts["rows"]
    assert max(grown.values()) <= most, f"{name}: the prompt took {grown} bytes, not at most {most:.0f}"
    if kv > 16e6 and small:  # what is measured depends on the prompt: the bound of a short one is passed
        assert seen > small, f"{name}: {seen:.0f} bytes would also do for a prompt of a sixteenth ({small:.0f})"


def least_memory(model, flags, tokens):
    """What doctor says the prompt needs; one MiB less does not do."""
    _, _, text = doctor(model, *flags, "--prompt", tokens, "--kv-memory", "1K", code=1)
    least = int(re.search(r"give --kv-memory (\d+)M", text).group(1))
    if least > 1:
        _, _, text = doctor(model, *flags, "--prompt", tokens, "--kv-memory", f"{least - 1}M", code=1)
        assert f"give --kv-memory {least}M" in text, text
    return f"{least}M"


def check_pages(name, groups, looks, tokens):
    for w, seen in looks.items():
        for g, (kind, held, touched) in enumerate(groups):
            got, all_of_it = seen.held[str(g)], seen.touched[str(g)]
            assert got <= held and all_of_it <= touched, f"{name} {w} group {g} ({kind}): {got} held, {all_of_it} with cached ones, not {held}, {touched}"
            assert kind in ("full", "latent") or got < tokens // BLOCK / 8 or SLOW != 1, f"{name}: {got} pages of {kind} are no window"
            assert kind in ("window", "state") or all_of_it >= tokens // BLOCK, f"{name}: {all_of_it} pages of a whole prompt"


def check(name, model, window=0, tokens=TOKENS, kv="f32", memory=None):
    flags = ["--context", str(tokens + 16), "--kv-type", kv]
    flags_up = [*flags, "--kv-memory", memory or least_memory(model, flags, tokens)]
    parts, groups, _ = doctor(model, *flags_up, "--prompt", tokens, "--threads", 1)
    small = doctor(model, *flags_up, "--prompt", tokens // 16, "--threads", 1)[0]["peak"] if tokens == TOKENS else 0
    with Cluster(model, *flags_up) as c:
        ready = {w: peak(c.pid(w)) for w in ("prefill-0", "decode-0")}
        looks, d = check_answer(name, c, model, flags, tokens)
        peaks = {w: peak(c.pid(w)) for w in ready}
    assert d("kvasir_prefill_tokens_total", worker="prefill-0") == tokens == d("kvasir_prefill_tokens_total")
    want = sum(pages_sent(kind, window, tokens) for kind, _, _ in groups)
    assert d("kvasir_kv_transfer_pages_total") == want, f"{d('kvasir_kv_transfer_pages_total')} pages, not {want} ({groups})"
    assert looks["prefill-0"].looks > 3 or tokens < TOKENS or SLOW != 1, "nobody looked at the pages"
    check_pages(name, groups, looks, tokens)
    check_peaks(name, parts, ready, peaks, small)


def model_of(name):
    return need(os.path.join(RANDOM, f"{name}.gguf"), name)


def test_full_attention():
    check("stories260K, one layer", first_layers(need(STORIES, "stories260K"), 1))


def test_windows_and_yarn():
    check("tiny-gpt-oss", model_of("tiny-gpt-oss"), window=16)


def test_windows_and_linear_scaling():
    check("tiny-gemma3", model_of("tiny-gemma3"), window=16)


def test_latents():
    check("tiny-deepseek2, one layer", first_layers(model_of("tiny-deepseek2"), 1))


def test_longrope():
    check("tiny-phi3, one layer", first_layers(model_of("tiny-phi3"), 1))


def test_states():
    check("tiny-mamba2", model_of("tiny-mamba2"))


def test_room_that_nobody_used_costs_nothing():
    """2 GiB of states this small could remember a million blocks of prompts; the books of those are not touched before there are any."""
    check("tiny-mamba2, 2G", model_of("tiny-mamba2"), memory="2G")


def test_weights():
    """The file's pages go while it is packed: the peak is not weights and file together."""
    check("SmolLM2-135M", smollm2(), tokens=300, kv="f16")


if __name__ == "__main__":
    main()
