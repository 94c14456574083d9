# placement_test.py - the same tokens and logits, bit for bit, by every placement, transport, page geometry, chunk size and batch; and proof
# from metrics that the path meant was the path taken. Each mechanism has a companion run with it off, which must fail that proof.
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures

from kvasir_cluster import *

ELEMENT = {"f32": 4, "f16": 2, "q8_0": 1.25}  # bytes a number; heads of 8 dims: each with a scale
_alone = {}
MODEL = STORIES  # generated_test.py puts another one here


def alone(kv, rows, n):
    """What one process says, cached: the numbers that every placement has to repeat."""
    for row in rows:
        key = (kv, tuple(row["prompt_ids"]), n)
        if key not in _alone:
            count = min(n, row["n_out"])
            _alone[key] = generate_alone(MODEL, row["prompt_ids"], count, "--context", "512", "--kv-type", kv)
    return [_alone[(kv, tuple(row["prompt_ids"]), n)] for row in rows]


class Shape:
    def __init__(self, kv="f32", transport="auto", block=0, layers=0, chunk=0):
        self.kv, self.transport, self.block, self.layers, self.chunk = kv, transport, block, layers, chunk

    def flags(self):
        f = ["--context", 512, "--kv-type", self.kv, "--transport", self.transport]
        for name, value in (("--block-tokens", self.block), ("--group-layers", self.layers), ("--chunk-tokens", self.chunk)):
            f += [name, value] if value else []
        return f

    def groups(self):
        return -(-STORIES_LAYERS // self.layers) if self.layers else 1

    def blocks(self, tokens):
        return -(-tokens // (self.block or 64))

    def pages(self, tokens):
        return self.blocks(tokens) * self.groups()

    def bytes(self, tokens):
        return int(self.blocks(tokens) * (self.block or 64) * STORIES_LAYERS * STORIES_KV * ELEMENT[self.kv])

    def lane(self):
        return "tcp" if self.transport == "tcp" else "shm"

    def chunks(self, tokens):
        return -(-tokens // (self.chunk or 128))

    def __str__(self):
        return f"kv {self.kv}, {self.transport}, block {self.block or 64}, layers {self.layers or 'all'}, chunk {self.chunk or 128}"


class Delta:
    def __init__(self, before, after):
        self.before, self.after = before, after

    def __call__(self, name, **labels):
        return self.after.sum(name, **labels) - self.before.sum(name, **labels)


def ask_all(cluster, rows, n, placement, together):
    def one(row):
        return cluster.complete(row["prompt_ids"], min(n, row["n_out"]), placement)
    if not together:
        return [one(row) for row in rows]
    with concurrent.futures.ThreadPoolExecutor(len(rows)) as pool:
        return list(pool.map(one, rows))


def check_answers(answers, rows, want, what):
    for answer, row, w in zip(answers, rows, want):
        same_as(rows_of(answer), w, f"{what}, {row['prompt']!r}")
        assert answer.choice()["prompt_token_ids"] == row["prompt_ids"]


def check_remote(shape, answers, rows, d):
    """All prompts were prefilled on the prefill worker and their pages travelled by the lane meant, once."""
    sizes = [len(row["prompt_ids"]) for row in rows]
    lane = shape.lane()
    assert d("kvasir_prefill_tokens_total", worker="prefill-0") == sum(sizes), "tokens prefilled on the prefill worker"
    assert d("kvasir_prefill_tokens_total", worker="decode-0") == 0, "tokens prefilled on the decode worker"
    assert d("kvasir_kv_transfer_pages_total", worker="decode-0", transport=lane) == sum(map(shape.pages, sizes)), "pages"
    assert d("kvasir_kv_transfer_bytes_total", worker="decode-0", transport=lane) == sum(map(shape.bytes, sizes)), "bytes"
    assert d("kvasir_kv_transfer_pages_total") == sum(map(shape.pages, sizes)), "pages by any other lane or worker"
    assert d("kvasir_kv_transfer_seconds_count", worker="decode-0") == len(rows), "transfers"
    assert d("kvasir_kv_declined_total") == 0, "declined pages"
    assert d("kvasir_prefix_cached_tokens_total") == 0, "cached tokens"
    for answer, n in zip(answers, sizes):
        assert answer.placement() == {"mode": "remote", "prefill": "prefill-0", "decode": "decode-0", "cached": "0",
                                      "bytes": str(shape.bytes(n)), "transport": lane}, answer.placement()


def check_local(answers, rows, d):
    tokens = sum(len(row["prompt_ids"]) for row in rows)
    assert d("kvasir_prefill_tokens_total", worker="prefill-0") == 0, "tokens prefilled on the prefill worker"
    assert d("kvasir_prefill_tokens_total", worker="decode-0") == tokens, "tokens prefilled on the decode worker"
    assert d("kvasir_kv_transfer_pages_total") == 0, "pages"
    for answer in answers:
        assert answer.placement() == {"mode": "local", "prefill": "decode-0", "decode": "decode-0", "cached": "0", "bytes": "0",
                                      "transport": "none"}, answer.placement()


def check_chunks(shape, rows, d, worker):
    assert d("kvasir_prefill_chunks_total", worker=worker) == sum(shape.chunks(len(row["prompt_ids"])) for row in rows), "chunks"


def check_batch(cluster, width):
    """So many sequences stood in one forward pass of the decode worker."""
    assert cluster.metrics().get("kvasir_batch_sequences_max", worker="decode-0") >= width, "widest batch"


def must_fail(check, *args):
    try:
        check(*args)
    except AssertionError:
        return
    raise RuntimeError(f"{check.__name__} passed with its mechanism off: it proves nothing")


def measured(cluster, rows, n, placement, together=False, before=None):
    """The answers and what the metrics say that they took; before: the page at the end of the last round, when nothing happened since."""
    before = before or cluster.metrics()
    answers = ask_all(cluster, rows, n, placement, together)
    return answers, Delta(before, cluster.metrics())


def run_shape(shape, rows, n):
    want = alone(shape.kv, rows, n)
    with Cluster(MODEL, *shape.flags()) as c:
        answers, d = measured(c, rows, n, "remote")
        check_answers(answers, rows, want, f"remote, {shape}")
        check_remote(shape, answers, rows, d)
        check_chunks(shape, rows, d, "prefill-0")
        must_fail(check_local, answers, rows, d)
        answers, d = measured(c, rows, n, "local", before=d.after)
        check_answers(answers, rows, want, f"local, {shape}")
        check_local(answers, rows, d)
        check_chunks(shape, rows, d, "decode-0")
        must_fail(check_remote, shape, answers, rows, d)
        answers, d = measured(c, rows, n, "remote", together=True, before=d.after)
        check_answers(answers, rows, want, f"remote, together, {shape}")
        check_remote(shape, answers, rows, d)
        answers, d = measured(c, rows, n, "local", together=True, before=d.after)
        check_answers(answers, rows, want, f"local, together, {shape}")
        check_local(answers, rows, d)
        c.idle()


def test_golden_by_every_placement():
    """All 14 prompts and a long one, all their tokens, against the golden of the other engine: ids equal, logits within 0.001."""
    need(STORIES, "stories260K")
    rows = golden() + [continued(golden()[11])]
    for transport in ("auto", "tcp"):
        shape = Shape(transport=transport)
        with Cluster(MODEL, *shape.flags()) as c:
            for row in rows[:2]:
                same_as(rows_of(c.complete(row["prompt_ids"], 200)), alone("f32", [row], 200)[0], "one at a time")
            must_fail(check_batch, c, 2)
            for placement in ("remote", "local"):
                answers, d = measured(c, rows, 200, placement, together=True)
                for answer, row in zip(answers, rows):
                    got = rows_of(answer)
                    assert [g[0] for g in got] == [o[0] for o in row["out"]], f"{placement}: ids of {row['prompt']!r}"
                    assert max(abs(g[1] - o[1]) for g, o in zip(got, row["out"])) <= 0.001
                    same_as(got, alone("f32", [row], 200)[0], f"{placement}, {transport}")
                if placement == "remote":
                    check_remote(shape, answers, rows, d)
                else:
                    check_local(answers, rows, d)
                check_batch(c, 4)


def every_shape(kv):
    """Both transports, two geometries, four chunk sizes: all equal to the engine alone with the same KV type, bit for bit."""
    need(STORIES, "stories260K")
    rows = [golden()[i] for i in (0, 2, 3, 11)]  # prompts of 1, 16, 17 and 29 tokens
    rows.append(continued(golden()[11]))  # and of 129: 3 blocks of 64, and a chunk of 64 is not all of it
    whole = generate_alone(MODEL, golden()[11]["prompt_ids"], 124, "--context", "512", "--kv-type", "f32")
    same_as(alone("f32", rows[-1:], 24)[0], whole[100:], "the long prompt read instead of written")
    alone(kv, rows, 24)
    shapes = [Shape(kv, transport, block, layers, chunk)
              for transport in ("shm", "tcp") for block, layers in ((0, 0), (16, 1)) for chunk in (1, 7, 64, 512)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # most of it is waiting for pages of metrics
        list(pool.map(lambda shape: run_shape(shape, rows, 24), shapes))


def test_shapes_agree_bit_for_bit_f32():
    every_shape("f32")


def test_shapes_agree_bit_for_bit_f16():
    every_shape("f16")


def test_each_proof_fails_with_its_mechanism_off():
    """The wrong lane, geometry, chunk size: the same answers, and the proof notices."""
    need(STORIES, "stories260K")
    rows = [golden()[i] for i in (2, 11)]
    meant = Shape("f32", "shm", 16, 1, 7)
    want = alone("f32", rows, 8)
    for actual in (Shape("f32", "tcp", 16, 1, 7), Shape("f32", "shm", 64, 1, 7), Shape("f32", "shm", 16, 5, 7)):
        with Cluster(MODEL, *actual.flags()) as c:
            answers, d = measured(c, rows, 8, "remote")
            check_answers(answers, rows, want, f"{actual}")
            check_remote(actual, answers, rows, d)
            must_fail(check_remote, meant, answers, rows, d)
    actual = Shape("f32", "shm", 16, 1, 0)
    with Cluster(MODEL, *actual.flags()) as c:
        answers, d = measured(c, rows, 8, "remote")
        check_answers(answers, rows, want, f"{actual}")
        must_fail(check_chunks, meant, rows, d, "prefill-0")


def forced_preemption(kv, transport):
    """Batches of both placements whose newest sequence loses its pages in mid-answer and is computed anew: the same numbers."""
    need(STORIES, "stories260K")
    rows = [golden()[i] for i in (1, 2, 3, 11)] + [continued(golden()[11])]
    shape = Shape(kv, transport)
    want = alone(kv, rows, 60)
    slower = f"decode.after_token=delay:{5 * SLOW:.0f}@1+"  # so that the requests stand in one batch, however late a machine sends them
    often = ";".join(f"decode.preempt=error@{at}" for at in range(9, 600, 40))  # each round has 59 of these moments at least

    def go(env):
        with Cluster(MODEL, *shape.flags(), env={"KVASIR_FAILPOINTS_SET": env}) as c:
            same_as(rows_of(c.complete(rows[0]["prompt_ids"], 4)), alone(kv, rows[:1], 60)[0][:4], "one at a time")
            must_fail(check_batch, c, 2)
            preempted = []
            for placement in ("remote", "local"):
                answers, d = measured(c, rows, 60, placement, together=True)
                check_answers(answers, rows, want, f"{placement}, preempted, {shape}")
                assert all(answer.placement()["mode"] == placement for answer in answers), "by another placement"
                check_batch(c, 4)
                preempted.append(d("kvasir_preemptions_total", worker="decode-0"))
                c.idle()
            return preempted
    preempted = go(slower + ";" + often)
    print(f"        {shape}: preempted {preempted[0]:.0f} times remote, {preempted[1]:.0f} local")
    assert min(preempted) >= 1, "nothing was preempted"
    if (kv, transport) == ("f32", "shm"):
        assert go(slower) == [0, 0], "preempted without the failpoint: the proof proves nothing"


def test_forced_preemption_changes_nothing_f32():
    for transport in ("shm", "tcp"):
        forced_preemption("f32", transport)


def test_forced_preemption_changes_nothing_f16():
    for transport in ("shm", "tcp"):
        forced_preemption("f16", transport)


def test_pages_running_out_preempts_and_changes_nothing():
    """KV memory for fewer tokens than all sequences need together; all answers stay whole."""
    need(STORIES, "stories260K")
    rows = [golden()[i] for i in (1, 2, 3, 5, 6, 8, 11, 13)]
    shape = Shape("f32", block=16)
    want = alone("f32", rows, 200)
    page = 16 * STORIES_LAYERS * STORIES_KV * 4

    def go(reserve):
        with Cluster(MODEL, *shape.flags(), "--kv-memory", page * 40, env={"KVASIR_KV_RESERVE_TOKENS": str(reserve)}) as c:
            answers, d = measured(c, rows, 200, "local", together=True)
            check_answers(answers, rows, want, "short of pages")
            c.idle()
            return d("kvasir_preemptions_total", worker="decode-0")
    preempted = go(16)
    print(f"        preemptions: {preempted:.0f}")
    assert preempted >= 1, "nothing was preempted"
    assert go(512) == 0, "preempted although all was reserved: the proof proves nothing"


def test_short_prompts_stay_local():
    need(STORIES, "stories260K")
    rows = golden()
    short, long = rows[1], rows[11]
    with Cluster(MODEL, *Shape().flags(), "--local-threshold", 10) as c:
        assert c.complete(short["prompt_ids"], 4).placement()["mode"] == "local"
        assert c.complete(long["prompt_ids"], 4).placement()["mode"] == "remote"


if __name__ == "__main__":
    main()
