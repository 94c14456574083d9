# client_test.py - clients on control streams against real daemons: Generate by ids and by text is what HTTP gives and what the golden says, by both
# placements; Abort ends a request in its middle and every page comes back.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *
from kvasir_wire import *
from placement_test import Delta

LOCAL, REMOTE = 1, 2
STOP, LENGTH = 1, 2
CANCELLED = 107


class Answered:
    """What the items of one GENERATE add up to."""

    def __init__(self):
        self.ids, self.text, self.finish, self.usage, self.chunks = [], b"", 0, None, 0

    def take(self, payload):
        f = dict(fields(payload))
        at, octets = 0, f.get(2, b"")
        while at < len(octets):
            v = shift = 0
            while True:
                v |= (octets[at] & 127) << shift
                shift += 7
                at += 1
                if octets[at - 1] < 128:
                    break
            self.ids.append(v)
        self.text += f.get(3, b"")
        self.chunks += 1
        assert self.finish == 0, "an item after the one that finished"
        self.finish = f.get(4, 0)
        if self.finish:
            self.usage = (f.get(5, 0), f.get(6, 0), f.get(7, 0))


def client(c, **more):
    s = Control(f"ipc://{c.run_dir}/router.sock", id="client", role=CLIENT, **more)
    kind, _, payload = s.next(10 * SLOW)
    assert kind == HELLO and dict(fields(payload))[5] == ROUTER, "no greeting of a router"
    return s


def answer_of(s, stream, until=None):
    """Items of a stream until its END: (Answered, status, text); until=n: as soon as n tokens are there, with status None."""
    a = Answered()
    while frame_ := s.next(REQUEST_SECONDS):
        kind, of, payload = frame_
        assert kind in (ITEM, END, CREDIT), f"frame {kind}"
        if of != stream or kind == CREDIT:
            continue
        if kind == END:
            f = dict(fields(payload))
            return a, f.get(1, 0), f.get(2, b"").decode()
        a.take(payload)
        if until and len(a.ids) >= until:
            return a, None, ""
    raise AssertionError(f"no END after {a.chunks} items")


def test_generate_is_the_goldens_answer():
    need(STORIES, "stories260K")
    with Cluster(STORIES, "--context", 512, "--kv-type", "f32") as c:
        s = client(c)
        request = 100
        for row in (golden()[1], golden()[11]):
            n, ids = row["n_out"], row["prompt_ids"]
            for place, prefilled in ((REMOTE, "prefill-0"), (LOCAL, "decode-0")):
                before = c.metrics()
                request += 1
                a, status, text = answer_of(s, s.call(GENERATE, generate(request=request, tokens=ids, n=n, place=place) + data(14, f"salt-{request}")))
                assert status == 0, f"END {status}: {text}"
                assert a.ids == [o[0] for o in row["out"]] and a.text.decode() == row["text"], f"{a.text[:80]} is not {row['text'][:80]!r}"
                assert a.finish == LENGTH and a.usage == (len(ids), n, 0), (a.finish, a.usage)
                assert a.chunks > 1, "not streamed"
                d = Delta(before, c.metrics())
                for worker in ("prefill-0", "decode-0"):
                    assert d("kvasir_prefill_tokens_total", worker=worker) == (len(ids) if worker == prefilled else 0), f"{place}: {worker}"
                assert (d("kvasir_kv_transfer_pages_total") > 0) == (place == REMOTE)
                assert d("kvasir_requests_total", outcome="ok") == 1
        # text instead of ids: the router tokenizes; the same as through HTTP
        http = c.complete("Once upon a time", 30).choice()
        a, status, text = answer_of(s, s.call(GENERATE, generate(request=7, tokens=(), n=30) + data(20, "Once upon a time")))
        assert (status, a.ids, a.text.decode()) == (0, http["token_ids"], http["text"]), (status, text)
        status, text = s.end_of(s.call(GENERATE, generate(request=8, model="nobody")), 10 * SLOW)
        assert status == 102 and "nobody" in text, (status, text)
        s.close()
        c.idle()


def test_abort_ends_it_and_returns_the_pages():
    """Each token takes 50 ms and 400 are asked for; the companion is the test above: not aborted, all tokens come."""
    need(STORIES, "stories260K")
    with Cluster(STORIES, "--context", 512, "--kv-type", "f32", env={"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:50@1+"}) as c:
        for place in (REMOTE, LOCAL):
            s = client(c)
            before = c.metrics()
            stream = s.call(GENERATE, generate(request=9, tokens=golden()[11]["prompt_ids"], n=400, place=place))
            a, status, _ = answer_of(s, stream, until=5)
            assert status is None, "it ended before it was aborted"
            assert c.metrics().sum("kvasir_kv_pages", state="held", worker="decode-0") > 0, "no page is held: nothing to give back"
            assert s.end_of(s.call(ABORT, fixed64(1, 8)), 10 * SLOW) == (0, "")  # another request: that one is not meant
            a, status, _ = answer_of(s, stream, until=3)
            assert status is None, "an Abort of another request ended it"
            start = time.monotonic()
            s.call(ABORT, fixed64(1, 9))
            a, status, text = answer_of(s, stream)
            assert status == CANCELLED, f"END {status}: {text}"
            took = c.idle(10)
            print(f"        aborted: ended and pages back after {time.monotonic() - start:.2f} s, {took:.2f} s of it for the pages")
            d = Delta(before, c.metrics())
            assert d("kvasir_requests_total", outcome="cancelled") == 1 and d("kvasir_requests_total", outcome="ok") == 0
            made = d("kvasir_itl_seconds_count")
            assert made < 300, f"{made} of 400 tokens were made"
            assert s.end_of(s.call(ABORT, fixed64(1, 9)), 10 * SLOW) == (0, ""), "an Abort of what is over"
            s.close()
        # a client that just leaves
        s = client(c)
        answer_of(s, s.call(GENERATE, generate(request=9, tokens=golden()[11]["prompt_ids"], n=400, place=REMOTE)), until=5)
        s.close()
        c.idle(10)


if __name__ == "__main__":
    main()
