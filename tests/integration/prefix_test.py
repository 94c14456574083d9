# prefix_test.py - KV that was computed once is found again: by the decode worker, by the prefill worker, in part of a block, by the choices of
# one request and by the next turn. Every number (prompt tokens computed and found, pages and bytes that travelled) is computed beforehand;
# tokens and logits are those of a cold run, bit for bit. The companions (another salt, --no-prefix-cache) must fail the same proofs.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *
from placement_test import Delta, Shape, must_fail

BLOCK, GROUPS, PROMPT, ANSWER = 16, 5, 69, 8  # 69 = 4 blocks and 5 tokens; with 7 answer tokens the fifth block stays open
SHAPE = Shape("f32", block=BLOCK, layers=1, chunk=7)


def prompt(i=0, n=PROMPT):
    """n ids: a golden prompt and what it led to."""
    row = golden()[(11, 3, 2, 5)[i]]
    ids = row["prompt_ids"] + [o[0] for o in row["out"]]
    assert len(ids) >= n
    return ids[:n]


def reborn(c, old):
    try:
        return c.pid("decode-0") != old
    except (FileNotFoundError, ValueError):
        return False


def alone(ids, n):
    return generate_alone(STORIES, ids, n, "--context", "512", "--kv-type", "f32")


def ask(c, ids, n, placement, salt):
    before = c.metrics()
    answer = c.complete(ids, n, placement, cache_salt=salt)
    return answer, Delta(before, c.metrics())


def check_found(d, answer, computed, found, blocks=0, mode="remote"):
    """computed, found: prompt tokens by worker role; blocks: how many travelled, in all groups."""
    for role in ("prefill", "decode"):
        assert d("kvasir_prefill_tokens_total", worker=f"{role}-0") == computed.get(role, 0), f"computed on {role}-0"
        assert d("kvasir_prefix_cached_tokens_total", worker=f"{role}-0") == found.get(role, 0), f"found on {role}-0"
    assert d("kvasir_kv_transfer_pages_total") == blocks * GROUPS, "pages that travelled"
    assert d("kvasir_kv_transfer_bytes_total") == SHAPE.bytes(blocks * BLOCK), "bytes that travelled"
    if answer is None:
        return
    prefilled = computed.get("prefill", 0) + computed.get("decode", 0)
    tokens = answer.json()["usage"]["prompt_tokens"]
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == tokens - prefilled, answer.json()["usage"]
    want = {"mode": mode, "cached": str(tokens - prefilled), "bytes": str(SHAPE.bytes(blocks * BLOCK))}
    assert {k: answer.placement()[k] for k in want} == want, answer.placement()


def check_rest(c, cached=True):
    c.idle(20)
    m = c.metrics()
    assert (m.sum("kvasir_kv_pages", state="cached") > 0) == cached, "cached pages at rest"
    c.check_pages(m)


def cold_and_again(c, salt="a", again="a"):
    ids = prompt()
    want = alone(ids, ANSWER)
    answer, d = ask(c, ids, ANSWER, "remote", salt)
    same_as(rows_of(answer), want, "cold")
    check_found(d, answer, {"prefill": PROMPT}, {}, SHAPE.blocks(PROMPT))
    answer, d = ask(c, ids, ANSWER, "remote", again)
    same_as(rows_of(answer), want, "again")
    # all blocks but the open one are on the decode worker: the rest is computed there
    check_found(d, answer, {"decode": PROMPT - 64}, {"decode": 64}, mode="local")
    return ids, want


def test_same_prompt_twice():
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE.flags()) as c:
        cold_and_again(c)
        check_rest(c)
        must_fail(cold_and_again, c, "b", "c")  # another salt: nothing is found
        check_rest(c)
    with Cluster(STORIES, *SHAPE.flags(), "--no-prefix-cache") as c:
        must_fail(cold_and_again, c)
        check_rest(c, cached=False)


def test_the_prefill_worker_finds_what_the_decode_worker_lost():
    """The decode worker starts anew: all pages travel again, but only the open block is computed."""
    need(STORIES, "stories260K")
    ids = prompt()
    want = alone(ids, ANSWER)

    def go(c):
        same_as(rows_of(c.complete(ids, ANSWER, "remote", cache_salt="a")), want, "cold")
        old = c.kill("decode-0")
        wait_for("a new decode worker", 60 * SLOW, lambda: reborn(c, old))
        wait_for("remote prefill works again", 60 * SLOW, lambda: c.complete(prompt(3), 1, "remote").placement().get("mode") == "remote", 0.2)
        answer, d = ask(c, ids, ANSWER, "remote", "a")
        same_as(rows_of(answer), want, "found by the prefill worker")
        check_found(d, answer, {"prefill": PROMPT - 64}, {"prefill": 64}, SHAPE.blocks(PROMPT))
    with Cluster(STORIES, *SHAPE.flags()) as c:
        go(c)
        check_rest(c)
    with Cluster(STORIES, *SHAPE.flags(), "--no-prefix-cache") as c:
        must_fail(go, c)


def test_a_common_head_of_blocks_and_tokens():
    """3 blocks and 5 tokens in common: blocks are shared, the head of the fourth is copied, the rest is computed; both placements."""
    need(STORIES, "stories260K")
    ids = prompt()
    other, third = ids[:53] + prompt(1)[1:17], ids[:53] + prompt(2)[1:17]
    assert len(other) == PROMPT and other[53] != ids[53] and third[53] not in (ids[53], other[53])

    def go(c, salt):
        c.complete(ids, ANSWER, "remote", cache_salt="a")
        answer, d = ask(c, other, ANSWER, "remote", salt)
        same_as(rows_of(answer), alone(other, ANSWER), "remote, partly cached")
        # the decode worker asks for the two blocks that it lacks; the prefill worker also uses the head of its fourth
        check_found(d, answer, {"prefill": PROMPT - 53}, {"decode": 48, "prefill": 53}, 2)
        answer, d = ask(c, third, ANSWER, "local", salt)
        same_as(rows_of(answer), alone(third, ANSWER), "local, partly cached")
        check_found(d, answer, {"decode": PROMPT - 53}, {"decode": 53}, mode="local")
    with Cluster(STORIES, *SHAPE.flags()) as c:
        go(c, "a")
        check_rest(c)
        must_fail(go, c, "b")
    with Cluster(STORIES, *SHAPE.flags(), "--no-prefix-cache") as c:
        must_fail(go, c, "a")


def test_two_turns():
    """The second turn's prompt is the first with its answer and a question: what was written is found as well."""
    need(STORIES, "stories260K")
    first, n = prompt(), 16  # 69 + 15 tokens with KV: five blocks
    with Cluster(STORIES, *SHAPE.flags()) as c:
        answer, _ = ask(c, first, n, "remote", "a")
        second = first + answer.choice()["token_ids"] + prompt(1, 10)
        assert len(second) == 95
        answer, d = ask(c, second, n, "remote", "a")
        same_as(rows_of(answer), alone(second, n), "second turn")
        check_found(d, answer, {"decode": 15}, {"decode": 80}, mode="local")
        answer, d = ask(c, second, n, "remote", "b")
        same_as(rows_of(answer), alone(second, n), "second turn, other salt")
        check_found(d, answer, {"prefill": 95}, {}, 6)
        check_rest(c)


def test_choices_share_their_prompt():
    need(STORIES, "stories260K")
    ids = prompt()

    def go(c):
        before = c.metrics()
        answer = c.request("POST", "/v1/completions",
                           {"model": "m", "prompt": ids, "max_tokens": ANSWER, "n": 4, "temperature": 1, "seed": 5, "return_token_ids": True,
                            "cache_salt": "a", "kvasir": {"logits": True, "placement": "remote"}})
        d = Delta(before, c.metrics())
        usage = answer.json()["usage"]["prompt_tokens_details"]
        assert usage["cached_tokens"] == 0 == int(answer.placement()["cached"]), f"all of it was computed for this request: {usage}"
        rows = [list(zip(x["token_ids"], x["kvasir"]["logits"])) for x in sorted(answer.json()["choices"], key=lambda x: x["index"])]
        return rows, d
    with Cluster(STORIES, *SHAPE.flags()) as c:
        shared, d = go(c)
        check_found(d, None, {"prefill": PROMPT, "decode": 3 * 5}, {"decode": 3 * 64}, SHAPE.blocks(PROMPT))
        check_rest(c)
    with Cluster(STORIES, *SHAPE.flags(), "--no-prefix-cache") as c:
        plain, d = go(c)
        check_found(d, None, {"prefill": 4 * PROMPT}, {}, 4 * SHAPE.blocks(PROMPT))
        must_fail(check_found, d, None, {"prefill": PROMPT, "decode": 3 * 5}, {"decode": 3 * 64}, SHAPE.blocks(PROMPT))
    assert len(shared) == 4 and shared == plain, "choices differ with and without sharing"


def test_eviction():
    """12 blocks of memory: the least recently used leaf goes first, and only as many as are needed."""
    need(STORIES, "stories260K")
    prompts = [[10 + i] + prompt(i)[1:] for i in range(3)]  # not even the first token in common
    want = [alone(ids, ANSWER) for ids in prompts]
    with Cluster(STORIES, *SHAPE.flags(), "--kv-memory", 12 * SHAPE.bytes(BLOCK)) as c:
        # (prompt, tokens found, blocks evicted): each leaves 4 blocks cached
        for i, found, evicted in ((0, 0, 0), (1, 0, 0), (2, 0, 1),  # C takes A's last block
                                  (0, 48, 1),                       # A finds three and takes B's last
                                  (2, 64, 0), (1, 48, 1)):
            answer, d = ask(c, prompts[i], ANSWER, "local", "a")
            same_as(rows_of(answer), want[i], f"prompt {i}")
            check_found(d, answer, {"decode": PROMPT - found}, {"decode": found}, mode="local")
            assert d("kvasir_prefix_evicted_blocks_total", worker="decode-0") == evicted, f"blocks evicted for prompt {i}"
        check_rest(c)


def test_fetch_from_another_decode_worker():
    """Two decode workers; one has the prompt. The other fetches its four blocks and computes the rest; a hint that is wrong costs nothing."""
    need(STORIES, "stories260K")
    ids, busy = prompt(), prompt(1)
    want = alone(ids, ANSWER)

    def decode_of(answer):
        return answer.placement()["decode"]

    def go(c, n=ANSWER, salt="a"):
        first = c.complete(ids, ANSWER, "local", cache_salt="a")
        owner = decode_of(first)
        streams = []
        while not streams or streams[-1].placement()["decode"] != owner:  # until the owner has what it can take: it would be chosen
            assert len(streams) < 8, "no request went to the owner of the prefix"
            streams.append(c.stream("/v1/completions", {"prompt": busy, "max_tokens": 400, "ignore_eos": True, "kvasir": {"placement": "local"}}))
            next(streams[-1].events())
        for s in streams[:-1]:
            s.close()
        before = c.metrics()
        answer = c.complete(ids, n, "local", cache_salt=salt, kvasir={"logits": True, "placement": "local", "fetch": owner})
        d = Delta(before, c.metrics())
        streams[-1].close()
        other = decode_of(answer)
        assert other != owner, "the request went to the worker that has the prompt"
        same_as(rows_of(answer), want, "fetched")
        return owner, other, answer, d

    def check_fetched(owner, other, answer, d):
        assert d("kvasir_kv_transfer_pages_total", worker=other) == 4 * GROUPS, "pages that travelled"
        assert d("kvasir_kv_transfer_bytes_total") == SHAPE.bytes(64), "bytes that travelled"
        assert d("kvasir_fetched_tokens_total", worker=other) == 64, "tokens fetched"
        assert d("kvasir_prefill_tokens_total", worker=other) == PROMPT - 64, "tokens computed"
        assert d("kvasir_prefix_cached_tokens_total", worker=owner) == 64, "tokens found by their owner"
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
        assert answer.placement()["bytes"] == str(SHAPE.bytes(64)) and answer.placement()["transport"] == "shm", answer.placement()

    env = {"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:20@1+", "KVASIR_ROUTER_WORKER_SEQUENCES": "1"}
    with Cluster(STORIES, *SHAPE.flags(), decode=2, env=env) as c:
        check_fetched(*go(c))
        check_rest(c)
    with Cluster(STORIES, *SHAPE.flags(), decode=2, env=env) as c:
        wrong = go(c, salt="b")  # the owner has nothing under this salt: the prompt is computed
        must_fail(check_fetched, *wrong)
        assert wrong[3]("kvasir_prefill_tokens_total", worker=wrong[1]) == PROMPT
        check_rest(c)


if __name__ == "__main__":
    main()
