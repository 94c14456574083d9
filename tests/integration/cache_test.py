# cache_test.py - what routers know of their workers' prefix caches: events on the control streams, snapshots after holes, the index's cap,
# digests in etcd for a router that is new, and a second router. What a router knows is its metric kvasir_router_index_blocks; what is true are
# the workers' cached pages (one group is counted: a page of it is a block). Where a request went is in its placement header.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *
from etcd_test import ByHand, Etcd
from placement_test import must_fail

BLOCK = 16
SHAPE = ["--context", "512", "--kv-type", "f32", "--block-tokens", str(BLOCK), "--group-layers", "1", "--chunk-tokens", "32"]


def ids(i, n=69):
    """A prompt of n ids that has nothing in common with those of other i."""
    row = golden()[(11, 3, 2, 5)[i % 4]]
    text = row["prompt_ids"] + [o[0] for o in row["out"]]
    return [text[0]] + [3 + (i * 7 + x) % 250 for x in range(3)] + text[4:n]


def blocks_cached(c, worker=None):
    """Blocks in the workers' prefix trees, counted by their pages at rest."""
    return int(c.metrics_now().sum("kvasir_kv_pages", state="cached", group="0", **({"worker": worker} if worker else {})))


def known(c):
    return int(c.metrics_now().get("kvasir_router_index_blocks"))


def agrees(c, at_least=1, seconds=20):
    """Router and workers name the same number of blocks."""
    def same():
        there, said = blocks_cached(c), known(c)
        return (there, said) if there == said and there >= at_least else None
    c.idle(20)
    (there, _), took = wait_for("the router knows what is cached", seconds * SLOW, same)
    return there


def test_the_router_follows_what_is_cached():
    """Blocks of prompts and answers, on both workers; then a cache so small that most are evicted again."""
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE, "--kv-memory", "2M") as c:
        assert known(c) == 0
        c.complete(ids(0), 8, "remote", cache_salt="a")
        first = agrees(c, 8)  # 4 whole blocks of the prompt, on the prefill worker and on the decode worker
        for i in range(1, 5):
            c.complete(ids(i), 8, "remote" if i % 2 else "local", cache_salt="a")
        assert agrees(c) > first
        for i in range(40):
            c.complete(ids(i, 120), 8, "local", cache_salt=f"more-{i}")
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
                c.complete(ids(sent, 120), 1, "local", cache_salt=f"s{sent}")
            assert sent < 1000, "the cap was never reached"
        m = c.metrics()
        assert m.get("kvasir_router_index_blocks") == room, m.get("kvasir_router_index_blocks")
        assert m.get("kvasir_router_index_bytes") <= 65536
        assert blocks_cached(c) > room


if __name__ == "__main__":
    main()
