# hostile_test.py - strangers at every door of a running cluster: bytes that are no frames, calls that nobody honest makes, members that are not
# what they say, requests that two readers would see differently. After each the same processes live, no page is held, no link is doubled,
# and the next honest request gets the right answer.
# SPDX-License-Identifier: Apache-2.0
import random

from kvasir_cluster import *
from kvasir_wire import *

NAN, INF = float("nan"), float("inf")
PROMPT = [1] + [403] * 100


class Fortress:
    """A cluster, its pids, what it answers, and the cards of its members."""

    def __init__(self, cluster):
        self.c = cluster
        self.pids = {name: cluster.pid(name) for name in cluster.names}
        self.url = {name: f"ipc://{cluster.run_dir}/{name}.sock" for name in cluster.names}
        self.want = cluster.complete(PROMPT, 8, "local").choice()["token_ids"]
        self.cards = self.read_cards()
        self.fingerprint, self.numerics = (dict(fields(self.cards["decode-0"]))[f] for f in (7, 8))

    def read_cards(self):
        """Whoever registers is told the members."""
        s = Control(self.url["router"], id="spy", epoch=3, role=PREFILL_ROLE)
        s.call(REGISTER, data(1, "spy") + num(2, PREFILL_ROLE) + fixed64(3, 3) + data(4, "ipc:///nowhere") + data(7, b"\1" * 32))
        cards = {}
        while not cards.keys() >= {"decode-0", "prefill-0"}:
            kind, _, payload = s.next(30 * SLOW) or (None, 0, b"")
            assert kind is not None, f"the router told of {set(cards)} only"
            for _, member in fields(payload) if kind == ITEM else []:
                card = dict(fields(member)).get(2)
                if card:
                    cards[dict(fields(card))[1].decode()] = card
        s.close()
        return cards

    def card(self, like="decode-0", **changed):
        """A copy of a real card; names of changed: f3=number or bytes."""
        out = b""
        for f, v in fields(self.cards[like]):
            v = changed.get(f"f{f}", v)
            out += fixed64(f, v) if f == 3 else data(f, v) if isinstance(v, bytes) else num(f, v)
        return out

    def stands(self, what):
        """The same processes, no report, and a right answer by both placements soon."""
        for name, pid in self.pids.items():
            assert alive(pid) and self.c.pid(name) == pid, f"{name} did not survive {what}"

        said = []

        def serves():
            for place in ("local", "remote"):
                answer = self.c.complete(PROMPT, 8, place)
                said[:] = [place, answer.status, answer.placement(), answer.body[:300]]
                if answer.status != 200 or answer.placement()["mode"] != place:
                    return False
                assert answer.choice()["token_ids"] == self.want, f"wrong tokens after {what}"
            return True
        try:
            wait_for(f"service after {what}", 30 * SLOW, serves, 0.2)
        except AssertionError as e:
            raise AssertionError(f"{e}; the last answer: {said}; {self.c.get('/kvasir/status').body[:1500]}") from e
        self.c.idle(10)


def fortress():
    need(STORIES, "stories260K")
    return Cluster(STORIES, "--context", 512, "--kv-type", "f32", "--block-tokens", 16, "--group-layers", 2, "--kv-memory", "4M")


def test_bytes_that_are_no_frames():
    rng = random.Random(4)
    with fortress() as c:
        f = Fortress(c)
        for name, url in f.url.items():
            for n in (1, 11, 12, 13, 5000, 200000):
                s = Control(url)
                s.send(rng.randbytes(n))
                s.close()
            for kind in range(16):
                for length in (0, 1, 4, 8, 1 << 20, (1 << 20) + 1, 0xffffffff):
                    s = Control(url)
                    s.send(frame(kind, rng.choice([0, 1, 2, 0xffffffff]), b"\xff" * min(length, 64), length))
                    s.close()
            half = [Control(url) for _ in range(40)]
            for i, s in enumerate(half):
                s.send(frame(HELLO, 0, hello())[:i])
            f.stands(f"garbage at {name}")
            for s in half:
                s.close()


def test_greetings_that_do_not_fit():
    with fortress() as c:
        f = Fortress(c)
        bad = [dict(low=0, high=0), dict(low=5, high=2), dict(low=9, high=9), dict(id=""), dict(id="x" * 64), dict(id='a"b'), dict(id="a b\n"),
               dict(role=0), dict(role=6), dict(role=PREFILL_ROLE, fingerprint=b"\1" * 31), dict(epoch=1, id="../x")]
        for name, url in f.url.items():
            for fields_ in bad:
                s = Control(url, **{"id": "stranger", **fields_})
                got = s.all(20)  # until the end
                assert got and got[-1][0] == GOAWAY, f"{name} took {fields_}: {got}"
                s.close()
            if name != "router":
                s = Control(url, id="other-model", role=BOTH, fingerprint=b"\1" * 32, numerics="x")
                assert s.all(20)[-1][0] == GOAWAY
                s.close()
            f.stands(f"greetings at {name}")


def test_generate_calls_that_cannot_be_served():
    """Each is refused by END with a status of its own; none is taken half."""
    bad = [dict(first=5), dict(tokens=(1, 2, 3), prompt_count=2, first=0), dict(prompt_count=0), dict(prompt_count=99), dict(tokens=()),
           dict(tokens=(-1,)), dict(tokens=(512,)), dict(tokens=[5] * 512), dict(tokens=[5] * 200000), dict(stop=(-5,)), dict(stop=[2] * 65),
           dict(place=7), dict(prefill="x" * 64)]
    numbers = [dict(sampling=s) for s in ((NAN, 1, 0, 0, 0), (INF, 1, 0, 0, 0), (-1, 1, 0, 0, 0), (1, NAN, 0, 0, 0), (1, -1, 0, 0, 0),
                                          (1, INF, 0, 0, 0), (1, 1, NAN, 0, 0), (1, 1, 2, 0, 0), (1, 1, -5, 0, 0))]
    with fortress() as c:
        f = Fortress(c)
        for who, role, cases in (("decode-0", ROUTER, bad + numbers), ("router", CLIENT, numbers + [dict(tokens=(512,)), dict(tokens=[5] * 512)])):
            for case in cases:
                s = Control(f.url[who], id="stranger", role=role)
                if role == ROUTER:
                    s.call(TOKENS)
                status, text = s.end_of(s.call(GENERATE, generate(**case)))
                assert status in (KVS_REQ_INVALID, KVS_REQ_TOO_LONG, KVS_PEER_PROTOCOL) and text, f"{who}: {case}: {status} {text}"
                assert "step" not in text, f"{who} found out too late: {case}: {text}"
                s.close()
            f.stands(f"calls at {who}")
        s = Control(f.url["decode-0"], id="stranger", role=ROUTER)  # a router that floods and is gone
        s.call(TOKENS)
        for i in range(1500):
            s.call(GENERATE, generate(request=i % 7, attempt=i % 3, n=400, tokens=[1] + [403] * (i % 300)))
        s.close()
        f.stands("a flood of calls")


def test_random_calls():
    """All methods, but no DRAIN that claims to be the router's: that one is obeyed."""
    rng = random.Random(9)
    with fortress() as c:
        f = Fortress(c)
        member = dict(fingerprint=f.fingerprint, numerics=f.numerics.decode())
        for name, url in f.url.items():
            for role in (dict(role=ROUTER), dict(role=CLIENT), dict(role=BOTH, **member)):
                s = Control(url, id="stranger", **role)
                for _ in range(80):
                    body = rng.choice([b"", rng.randbytes(rng.randrange(60)), generate(request=rng.randrange(5)), prefill(), f.card(), link(),
                                       rng.randbytes(3000)])
                    if body and rng.random() < 0.3:
                        at = rng.randrange(len(body))
                        body = body[:at] + rng.randbytes(1) + body[at + 1:]
                    method = rng.choice([*range(13), 1 << 31, (1 << 32) - 1])
                    if method == DRAIN and role["role"] == ROUTER:
                        method = HEALTH
                    stream = s.call(method, body, rng.choice([0, 1, 1000, (1 << 32) - 1]))
                    for kind, payload in ((CANCEL, b""), (ACK, b""), (NACK, rng.randbytes(5)), (PAUSE, fixed64(1, 1)), (RESUME, fixed64(1, 1)),
                                          (CREDIT, struct.pack("<I", rng.choice([0, 1, 1 << 31]))), (ITEM, rng.randbytes(8)), (END, b"")):
                        if rng.random() < 0.12:
                            s.send(frame(kind, stream if kind != ITEM else 2, payload))
                    if rng.random() < 0.05:
                        s.close()
                        s = Control(url, id="stranger", **role)
                s.all(0.2)
                s.close()
            f.stands(f"random calls at {name}")


def test_links_that_lie():
    """A member that may link sends an address that is none: UCX, which would abort, never sees it."""
    rng = random.Random(2)
    with fortress() as c:
        f = Fortress(c)
        liar = dict(id="aaa-liar", epoch=123, role=DECODE_ROLE, fingerprint=f.fingerprint, numerics=f.numerics.decode())
        registered = Control(f.url["router"], **liar)
        registered.call(REGISTER, f.card(f1=b"aaa-liar", f3=123, f4=b"ipc:///nowhere"))
        registered.all(0.5)
        for address in (b"\0" * 8, b"\xff" * 64, rng.randbytes(64), rng.randbytes(300), rng.randbytes(1024)):
            s = Control(f.url["prefill-0"], **liar)
            wait_for("the first exchange", 10 * SLOW, lambda: s.end_of(s.call(LINK, link()))[0] == 0, 0.1)
            status, text = s.end_of(s.call(LINK, link(address=address, check=rng.getrandbits(64))))
            assert status == KVS_PEER_PROTOCOL and "address" in text, f"{len(address)} bytes: {status} {text}"
            s.close()
            registered.all(0.01)
        s = Control(f.url["prefill-0"], **liar)
        assert s.end_of(s.call(LINK, link(address=b"x")))[0] == KVS_PEER_PROTOCOL, "the second exchange before the first"
        assert s.end_of(s.call(PREFILL, prefill()))[0] != 0, "PREFILL without a link"
        s.close()
        registered.close()
        f.stands("lying links")


def test_a_card_is_put_and_taken_by_its_owner_only():
    """Once, whoever registered with a copy of a worker's card and left took that worker out for good."""
    with fortress() as c:
        f = Fortress(c)
        for who in (dict(id="thief", epoch=5, role=CLIENT),
                    dict(id="thief", epoch=5, role=DECODE_ROLE, fingerprint=f.fingerprint, numerics=f.numerics.decode())):
            for name in ("decode-0", "prefill-0"):
                s = Control(f.url["router"], **who)
                stream = s.call(REGISTER, f.cards[name])
                assert s.end_of(stream)[0] == KVS_REQ_INVALID, f"{who} registered {name}"
                s.send(frame(CANCEL, stream))
                s.close()
                states = {w["id"]: w["state"] for w in c.status()["workers"]}
                assert states[name] == "ready", states
            f.stands("a stolen card")


def test_members_that_are_not_what_they_say():
    with fortress() as c:
        f = Fortress(c)
        cases = [dict(f12=0), dict(f13=0), dict(f14=0), dict(f13=1024), dict(f17=num(1, (1 << 64) - 1) + num(2, (1 << 32) - 1)), dict(f6=b"other"),
                 dict(f7=b"\2" * 32), dict(f4=b""), dict(f4=b"file:///etc/passwd"), dict(f4=f.url["router"].encode()),
                 dict(f4=f.url["prefill-0"].encode()), dict(f5=b'http://"'), dict(f2=5), dict(f2=1)]
        for i, case in enumerate(cases):
            s = Control(f.url["router"], id=f"fake-{i}", epoch=50 + i, role=DECODE_ROLE, fingerprint=f.fingerprint, numerics=f.numerics.decode())
            s.call(REGISTER, f.card(**{"f1": f"fake-{i}".encode(), "f3": 50 + i, **case}))
            for kind, stream, _ in s.all(0.2):
                if kind == CALL:
                    s.send(frame(ITEM, stream, random.Random(i).randbytes(30)))
            s.all(0.1)
            s.close()
        f.stands("false members")
        # somebody takes the names of the real ones for a moment, again and again: they come back, and no link is left over
        descriptors = {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in f.pids.items()}
        for i in range(4):
            for name in ("decode-0", "prefill-0"):
                s = Control(f.url["router"], id=name, epoch=900 + i, role=DECODE_ROLE, fingerprint=f.fingerprint, numerics=f.numerics.decode())
                s.call(REGISTER, f.card(f1=name.encode(), f3=900 + i))
                s.all(0.3)
                s.close()
            f.stands("a stolen name")
        for worker in c.status()["workers"]:
            peers = [p["id"] for p in worker["peers"]]
            assert len(peers) == len(set(peers)), f"{worker['id']} has doubled links: {peers}"
        for name, pid in f.pids.items():
            n = len(os.listdir(f"/proc/{pid}/fd"))
            assert n <= descriptors[name] + 4, f"{name}: {n} descriptors, {descriptors[name]} before"


def test_requests_that_two_readers_see_differently():
    body = b'{"model":"m","prompt":[1,403],"max_tokens":2}'
    n, post = len(body), b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    with fortress() as c:
        f = Fortress(c)
        for what, octets in {
            "space before the colon": post + b"Content-Length : %d\r\n\r\n" % n + body,
            "tab before the colon": post + b"Transfer-Encoding\t: chunked\r\n\r\n%x\r\n" % n + body + b"\r\n0\r\n\r\n",
            "a coding in HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % n + body + b"\r\n0\r\n\r\n",
        }.items():
            out = c.raw(octets, 5)
            assert out.startswith(b"HTTP/1.1 400") and out.count(b"HTTP/1.1 ") == 1, f"{what}: {out[:300]!r}"
            assert b"connection: close" in out.lower(), f"{what}: {out[:300]!r}"
        out = c.raw((post + b"Content-Length: %d\r\n\r\n" % n + body) * 20 + b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 60)
        assert out.count(b"HTTP/1.1 200") == 21, "pipelined requests"
        full = post + b"Content-Length: %d\r\n\r\n" % n + body
        for i in range(0, len(full), 3):  # gone after every third byte
            with socket.create_connection((c.host, c.port), 5) as s:
                s.sendall(full[:i])
        f.stands("odd requests")


if __name__ == "__main__":
    main()
