# cache_test.py - what routers know of their workers' prefix caches: events on the control streams, snapshots after holes, the index's cap,
# digests in etcd for a router that is new, and a second router. What a router knows is its metric kvasir_router_index_blocks; what is true are
# the workers' cached pages (one group is counted: a page of it is a block). Where a request went is in its placement header.
# SPDX-License-Identifier: Apache-2.0
import base64
import concurrent.futures
import urllib.request

from kvasir_cluster import *
from etcd_test import ByHand, Etcd
from placement_test import must_fail

BLOCK = 16
PROMPT, WHOLE = 261, 256  # tokens of the prompts below, and of their whole blocks
SHAPE = ["--context", "512", "--kv-type", "f32", "--block-tokens", str(BLOCK), "--group-layers", "1", "--chunk-tokens", "32"]


def ids(i, n=PROMPT):
    """A prompt of n ids that has nothing in common with those of other i."""
    row = golden()[(11, 3, 2, 5)[i % 4]]
    text = (row["prompt_ids"] + [o[0] for o in row["out"]]) * 20
    assert len(text) >= n
    return [text[0]] + [3 + (i * 7 + x) % 250 for x in range(3)] + text[4:n]


def blocks_cached(c, worker=None, page=None):
    """Blocks in the workers' prefix trees, counted by their pages at rest."""
    return int((page or c.metrics()).sum("kvasir_kv_pages", state="cached", group="0", **({"worker": worker} if worker else {})))


def known(c, page=None):
    return int((page or c.metrics()).get("kvasir_router_index_blocks"))


def agrees(c, at_least=1, seconds=30):
    """Router and workers name the same number of blocks."""
    def same():
        page = c.metrics()  # younger than what was done before
        there, said = blocks_cached(c, page=page), known(c, page)
        seen[:] = there, said
        return (there, said) if there == said and there >= at_least else None
    seen = []
    c.idle(20)
    try:
        return wait_for("the router knows what is cached", seconds * SLOW, same)[0][0]
    except AssertionError as e:
        raise AssertionError(f"{e}: {seen[0]} blocks are, {seen[1]} are known, at least {at_least} should be") from None


def test_the_router_follows_what_is_cached():
    """Blocks of prompts and answers, on both workers; then a cache so small that most are evicted again."""
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE, "--kv-memory", "2M") as c:
        assert known(c) == 0
        c.complete(ids(0), 8, "remote", cache_salt="a")
        first = agrees(c, 2 * WHOLE // BLOCK)  # on the prefill worker and on the decode worker
        for i in range(1, 5):
            c.complete(ids(i), 8, "remote" if i % 2 else "local", cache_salt="a")
        assert agrees(c) > first
        for i in range(40):
            c.complete(ids(i), 8, "local", cache_salt=f"more-{i}")
        agrees(c)
        m = c.metrics()
        assert m.sum("kvasir_prefix_evicted_blocks_total", worker="decode-0") > 0, "nothing was evicted: the test is too small"
        assert m.sum("kvasir_cache_events_total", worker="decode-0") > m.sum("kvasir_prefix_evicted_blocks_total", worker="decode-0")
        assert m.sum("kvasir_cache_snapshots_total") == 2  # one a worker, when the router called
        assert m.get("kvasir_router_cache_gaps_total") == 0
        per = 36
        assert m.get("kvasir_router_index_bytes") - per * known(c) < 16384
        c.kill("decode-0")
        wait_for("its blocks are forgotten", 30 * SLOW, lambda: known(c) == blocks_cached(c, "prefill-0"))


def test_a_hole_is_mended_by_a_snapshot():
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE, env={"KVASIR_FAILPOINTS_SET": "cache.skip=error@2"}) as c:
        for i in range(6):
            c.complete(ids(i), 8, "local", cache_salt="a")
        agrees(c)
        m = c.metrics()
        assert m.get("kvasir_router_cache_gaps_total") >= 1, "no item was lost: the test proves nothing"
        assert m.sum("kvasir_cache_snapshots_total") >= 3


def test_the_index_keeps_to_its_cap():
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE, env={"KVASIR_ROUTER_INDEX_MEMORY": "64K"}) as c:
        room = (65536 - 256 - 256 * 16) // 36
        sent = 0
        while c.metrics_now().get("kvasir_router_index_dropped_total") == 0:
            for _ in range(8):
                sent += 1
                c.complete(ids(sent, 400), 1, "local", cache_salt=f"s{sent}")
            assert sent < 1000, "the cap was never reached"
        m = c.metrics()
        assert m.get("kvasir_router_index_blocks") == room, m.get("kvasir_router_index_blocks")
        assert m.get("kvasir_router_index_bytes") <= 65536
        assert blocks_cached(c) > room


def test_a_large_cache_is_told_in_pieces_as_far_as_there_is_credit():
    """Blocks of one token: a snapshot of several items, more than a call may have on its way at once (256 KiB)."""
    need(STORIES, "stories260K")
    shape = SHAPE[:5] + ["1"] + SHAPE[6:]
    assert shape[4] == "--block-tokens"
    with Cluster(STORIES, *shape, "--kv-memory", "64M") as c:
        for i in range(60):
            c.complete(ids(i, 400), 1, "local", cache_salt=f"s{i}")
        there = agrees(c, 60 * 350)
        pid = c.kill("router")
        wait_for("a new router", 60 * SLOW, lambda: os.path.exists(os.path.join(c.run_dir, "router.pid")) and c.pid("router") != pid)
        wait_for("it serves, and knows the workers", 60 * SLOW, lambda: serves(c) and blocks_cached(c) == there, 0.2)
        assert agrees(c) == there
        assert c.metrics().get("kvasir_router_cache_gaps_total") == 0
        print(f"        {there} blocks, {there * 18 / 1024:.0f} KiB at least")
        assert there * 18 > 256 * 1024


def serves(c):
    with contextlib.suppress(OSError, ValueError):
        return c.get("/health/ready").status == 200


# --- etcd ---

def in_etcd(etcd, prefix):
    """All keys under prefix as etcd itself has them: key -> (value, lease)."""
    raw = prefix.encode()
    body = {"key": base64.b64encode(raw).decode(), "range_end": base64.b64encode(raw[:-1] + bytes([raw[-1] + 1])).decode()}
    request = urllib.request.Request(f"http://127.0.0.1:{etcd.port}/v3/kv/range", json.dumps(body).encode())
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as r:
        found = json.load(r).get("kvs", [])
    return {base64.b64decode(kv["key"]).decode(): (base64.b64decode(kv.get("value", "")), kv.get("lease")) for kv in found}


def digest(etcd, worker):
    """(epoch, {prefix hash: blocks}) as told by the worker's segments, read by a parser of our own."""
    epochs, prefixes = set(), {}
    for value, _ in in_etcd(etcd, f"/kvasir/v1/default/cache/m/{worker}/seg/").values():
        at, hashes, blocks = 0, b"", []
        while at < len(value):
            tag, at = value[at], at + 1
            if tag == 0x09:
                epochs.add(int.from_bytes(value[at:at + 8], "little"))
                at += 8
                continue
            assert tag in (0x12, 0x1A), tag
            length, at = varint(value, at)
            if tag == 0x12:
                hashes = value[at:at + length]
            else:
                end = at + length
                while at < end:
                    n, at = varint(value, at)
                    blocks.append(n)
                continue
            at += length
        assert len(hashes) == 16 * len(blocks) and len(blocks) <= 512
        prefixes.update({hashes[i * 16:i * 16 + 16]: n for i, n in enumerate(blocks)})
    assert len(epochs) <= 1, epochs
    return epochs, prefixes


def varint(b, at):
    value = shift = 0
    while True:
        value, shift, at = value | (b[at] & 127) << shift, shift + 7, at + 1
        if b[at - 1] < 128:
            return value, at


def by_hand(h, etcd, decodes=2):
    h.worker("prefill", "prefill-0", etcd.url, "--kv-memory", "32M")
    for i in range(decodes):
        h.worker("decode", f"decode-{i}", etcd.url, "--kv-memory", "32M")


def warm(router, workers=("decode-0", "decode-1"), each=2):
    """Prompts of 16 whole blocks and 5 tokens, two at a time, until each worker has some of them. Returns where each prompt was decoded."""
    where = []
    while any(where.count(w) < each for w in workers):
        assert len(where) < 60, f"requests are not spread: {where}"
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda i: router.complete(ids(i), 9, "local", cache_salt="a"), (len(where), len(where) + 1)))
        where += [a.placement()["decode"] for a in answers]
    return where


def test_digests_stand_in_etcd_and_change_with_the_cache():
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))
        by_hand(h, etcd, 1)
        router = h.router("router-1", etcd.url)
        router.ready(2)
        warm(router, ("decode-0",), 4)
        wait_for("four prompts and what they led to", 20 * SLOW, lambda: len(digest(etcd, "decode-0")[1]) >= 4)
        epochs, prefixes = digest(etcd, "decode-0")
        assert epochs == {int(router.epochs()["decode-0"], 16)}, (epochs, router.epochs())
        # ends of what was said, and places where prompts part (the salt's first block is one of none here): not every block
        assert len(prefixes) < blocks_cached(router, "decode-0"), (len(prefixes), blocks_cached(router, "decode-0"))
        assert max(prefixes.values()) == WHOLE // BLOCK and min(prefixes.values()) >= 1, prefixes
        keys = in_etcd(etcd, "/kvasir/v1/default/cache/")
        members = in_etcd(etcd, "/kvasir/v1/default/members/")
        assert keys and all(lease == members["/kvasir/v1/default/members/" + key.split("/")[6]][1] for key, (_, lease) in keys.items()), keys
        written = written_in_all(router)
        time.sleep(2.5)  # nothing changes: nothing is written
        assert router.metrics().sum("kvasir_cache_digest_writes_total", worker="decode-0") == written
        start, before = time.monotonic(), written
        for i in range(30):
            router.complete(ids(i), 2, "local", cache_salt=f"b{i}")
        took = time.monotonic() - start
        written = written_in_all(router) - before
        assert 1 <= written <= (took + 4) * 4, f"{written} segments in {took:.1f} s"
        told = digest(etcd, "decode-0")
        etcd.kill()  # it comes back with nothing: cards and digests are put again, under new leases
        etcd.wipe()
        etcd.start()
        wait_for("the digest is there again", 60 * SLOW, lambda: came_back(etcd) and digest(etcd, "decode-0") == told, 0.3)
        decode = [p for p in h.processes if p.name == "decode-0"][0]
        decode.signal(signal.SIGTERM)
        wait_for("its digest goes with its card", 20 * SLOW, lambda: not in_etcd(etcd, "/kvasir/v1/default/cache/m/decode-0/"))


def written_in_all(router):
    """Digest segments that were written, once that has come to rest: what was written is counted a second later."""
    def count():
        return router.metrics().sum("kvasir_cache_digest_writes_total", worker="decode-0")

    def at_rest():
        before = count()
        time.sleep(2.5)
        return before == count()
    wait_for("nothing more is written", 30 * SLOW, at_rest)
    return count()


def came_back(etcd):
    with contextlib.suppress(OSError, ValueError):
        return in_etcd(etcd, "/kvasir/v1/default/cache/m/decode-0/")


def digests_left_behind(h):
    """A cluster with etcd whose workers have cached prompts and written digests; its only router was killed."""
    etcd = h.add(Etcd(h.dir))
    by_hand(h, etcd)
    router = h.router("router-1", etcd.url)
    router.ready(3)
    warmed = warm(router)
    for worker in ("decode-0", "decode-1"):
        wait_for(f"{worker} has written its digest", 20 * SLOW, lambda: len(digest(etcd, worker)[1]) >= warmed.count(worker))
    router.process.kill()
    return etcd, warmed


def restarted(h, etcd, warmed, name, env=None):
    """A router that is new sends every prompt to the worker that has it."""
    router = h.router(name, etcd.url, env=env)
    router.ready(3)
    m = router.metrics()
    assert m.get("kvasir_router_digest_prefixes_total") > 0, "no digest was read"
    if env:
        assert known(router) == m.get("kvasir_router_digest_prefixes_total"), "something else than the digests is known"
    finds(router, warmed)
    return router


def finds(router, warmed):
    """Every prompt goes to the worker that has it, and only its open block is computed. One token each: nothing is cached that was not before."""
    before = router.metrics()
    for i, decode in reversed(list(enumerate(warmed))):
        placed = router.complete(ids(i), 1, "local", cache_salt="a").placement()
        assert placed["decode"] == decode, f"prompt {i} was given to {placed['decode']}, {decode} has it"
        assert placed["cached"] == str(WHOLE), placed
    computed = router.metrics().sum("kvasir_prefill_tokens_total") - before.sum("kvasir_prefill_tokens_total")
    assert computed == (PROMPT - WHOLE) * len(warmed), computed


def test_a_restarted_router_places_by_digest_before_events_arrive():
    blind = {"KVASIR_FAILPOINTS_SET": "router.cache_call=error@1+"}  # it never asks for events
    with ByHand() as h:
        etcd, warmed = digests_left_behind(h)
        restarted(h, etcd, warmed, "router-2", blind).process.kill()
        # without digests as well, it knows nothing
        router = h.router("router-3", etcd.url, env=blind)
        router.ready(3)
        with_digest = known(router)
        for key in in_etcd(etcd, "/kvasir/v1/default/cache/"):
            raw = base64.b64encode(key.encode()).decode()
            request = urllib.request.Request(f"http://127.0.0.1:{etcd.port}/v3/kv/deleterange", json.dumps({"key": raw}).encode())
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).close()
        router.process.kill()
        router = h.router("router-4", etcd.url, env=blind)
        router.ready(3)
        assert with_digest > 0 and known(router) == 0
        must_fail(finds, router, warmed)


def test_events_take_the_digests_place():
    """The router without the failpoint: digests first, then what the workers say, to the block."""
    with ByHand() as h:
        etcd, warmed = digests_left_behind(h)
        router = restarted(h, etcd, warmed, "router-2")
        agrees(router)


def test_two_routers_know_the_same():
    """What one router's requests bring into the caches the other one places by; each follows the events by itself."""
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))
        by_hand(h, etcd)
        one, two = h.router("router-1", etcd.url), h.router("router-2", etcd.url)
        one.ready(3)
        two.ready(3)
        warmed = warm(one)
        there = agrees(one)
        assert agrees(two) == there
        finds(two, warmed)
        one.process.kill()
        for i in range(60, 64):
            two.complete(ids(i), 9, "local", cache_salt="a")
        agrees(two)
        three = h.router("router-3", etcd.url)
        three.ready(3)
        agrees(three)


if __name__ == "__main__":
    main()
