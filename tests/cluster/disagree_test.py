# disagree_test.py - those who do not see the same cluster: a pair that cannot reach each other while everybody reaches both, one router of
# two that is cut off from one worker, members that etcd has forgotten but that answer, members that etcd names but that do not answer, a
# router that has not heard of a worker's new life; and streams of which only one end knows that they are dead (half-open).
# What must hold throughout: every stream of the clients is right and whole, links come back by themselves, epochs are those they were.
# SPDX-License-Identifier: Apache-2.0
import collections
import concurrent.futures

from kvasir_net import *

HANG = 3.0
TTL = 10
SLOWLY = {"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:2@1+"}
_known = {}


def known(n=60):
    if n not in _known:
        _known[n] = Known(n)
    return _known[n]


def placements(h, router, count=6):
    """Where requests for remote prefill were computed that came at once, so many; every answer is compared. Those that come one by one may
    all go the same way: a worker that is a little slower is not needed then."""
    def place(i):
        body, want = known().cases[i % len(known().cases)]
        n = 12
        answer = h.router[router].complete(body["prompt"], n, "remote", **{k: v for k, v in body.items() if k in ("seed", "temperature", "ignore_eos")})
        same_as(rows_of(answer), want[:n], "a placed request")
        p = answer.placement()
        return p["mode"], p["prefill"], p["decode"]
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(place, range(count)))


def placed_until(h, what, right):
    """Asks both routers again and again until right(all placements so far); which worker is chosen is the load's to say."""
    seen = []

    def look():
        for r in h.routers:
            seen.extend(placements(h, r, 12))
        return right(seen)
    try:
        wait_for(what, 60 * SLOW, look, 0)
    except AssertionError:
        print(f"        placed: {collections.Counter(seen)}")
        for r in h.routers:
            print(f"        {r}: " + "; ".join(f"{w['id']} {w['state']} linked to {[p['id'] for p in w['peers']]}" for w in h.router[r].status()["workers"]))
        raise
    return seen


def test_a_pair_that_cannot_reach_each_other():
    """decode-0 and prefill-0, both ways and one way: both stay in use, never together."""
    with Hosts(env=SLOWLY) as h, Streams(h, known(), clients=9) as load:
        for way in ("both", "to decode", "to prefill"):
            load.all_run()
            wall = time.time()
            if way in ("both", "to decode"):
                h.net.drop("prefill-0", "decode-0")
            if way in ("both", "to prefill"):
                h.net.drop("decode-0", "prefill-0")
            took = [h.noticed("decode-0", "peer lost", wall, "peer=prefill-0", seconds=HANG),
                    h.noticed("prefill-0", "peer lost", wall, "peer=decode-0", seconds=HANG)]
            load.go_on(9)
            wait_for("the routers know", 10 * SLOW, lambda: not any("prefill-0" in [p["id"] for p in w["peers"]]
                     for r in h.routers for w in h.router[r].status()["workers"] if w["id"] == "decode-0"))
            seen = placed_until(h, "both are used, each with others", lambda seen: any(p[0] == "remote" and p[2] == "decode-0" for p in seen)
                                and any(p[1] == "prefill-0" for p in seen))
            assert ("remote", "prefill-0", "decode-0") not in seen, "placed on a pair without a link"
            for r in h.routers:
                assert not h.lines(r, "worker lost", wall), "a router lost a worker that it reaches"
            h.net.heal()
            back = h.all_ready()
            load.go_on(9)
            print(f"        cut {way}: noticed after {min(took):.2f} and {max(took):.2f} s (promised {HANG:g}), linked again after {back:.2f} s", flush=True)
        load.over.set()
        h.idle(20)


def test_one_router_of_two():
    """router-0 does not reach decode-0, router-1 does: streams by router-0 move, those by router-1 stay where they are."""
    with Hosts(env=SLOWLY) as h, Streams(h, known(), clients=12) as load:
        load.all_run()
        epochs = h.epochs("router-1")
        wall, start = time.time(), time.monotonic()
        h.net.cut("router-0", "decode-0")
        took = h.noticed("router-0", "worker lost", wall, "worker=decode-0", seconds=HANG)
        load.go_on(12)
        time.sleep(max(0, TTL + 2 - (time.monotonic() - start)))  # its key lives on: it is not cut off from etcd
        load.go_on(12)
        assert not h.lines("router-1", "worker lost", wall)
        assert "decode-0" not in [w["id"] for w in h.router["router-0"].status()["workers"] if w["state"] == "ready"]
        resumed = h.router["router-0"].metrics_now().sum("kvasir_resumed_total")
        h.net.heal()
        back = h.all_ready()
        assert h.epochs("router-0") == epochs == h.epochs("router-1")
        load.go_on(12)
        print(f"        noticed after {took:.2f} s (promised {HANG:g}), {resumed:.0f} resumed, back after {back:.2f} s, longest pause "
              f"{load.pause_since(start):.2f} s")
        assert resumed > 0, "nothing ran there"
        load.over.set()
        h.idle(20)


def test_etcd_forgets_who_answers():
    """decode-0 and prefill-0 are cut off from etcd for longer than a lease: nobody loses them, and they serve; back, they are the same members."""
    with Hosts(env=SLOWLY) as h:
        others = ["prefill-1", "prefill-2", "decode-1", "decode-2"]
        with Streams(h, known(), clients=9) as load:
            load.all_run()
            epochs = h.epochs("router-0")
            wall = time.time()
            for w in ("decode-0", "prefill-0"):
                h.net.cut(w, "etcd")
            for r in h.routers:
                for w in ("decode-0", "prefill-0"):
                    h.noticed(r, "worker is gone from etcd but answers", wall, f"worker={w}", seconds=2 * TTL)
            load.go_on(18)
        for r in h.routers:
            assert not h.lines(r, "worker lost", wall), "lost, though it answers"
        for w in others:  # now it is them or nobody
            h.process[w].signal(signal.SIGSTOP)
        for r in h.routers:
            wait_for(f"{r} has lost the others", 3 * HELD, lambda: all(h.lines(r, "worker lost", wall, f"worker={w}") for w in others))
            assert set(placements(h, r, 3)) == {("remote", "prefill-0", "decode-0")}
        for w in others:
            h.process[w].signal(signal.SIGCONT)
        h.net.heal()
        for w in ("decode-0", "prefill-0"):
            wait_for(f"{w} is registered again", 60 * SLOW, lambda: Metrics(h.page(w)).sum("kvasir_discovery_up") == 1)
        h.all_ready()
        for r in h.routers:
            assert h.epochs(r) == epochs
            assert not any(h.lines(r, "worker lost", wall, f"worker={w}") for w in ("decode-0", "prefill-0"))
        h.idle(20)


def test_etcd_names_who_does_not_answer():
    """decode-0 reaches nobody but etcd: its key stays, and nobody uses it."""
    with Hosts(env=SLOWLY) as h, Streams(h, known(), clients=9) as load:
        load.all_run()
        wall = time.time()
        h.net.cut_off("decode-0", but=("client", "etcd"))
        took = [h.noticed(r, "worker lost", wall, "worker=decode-0", seconds=HANG) for r in h.routers]
        load.go_on(9)
        time.sleep(TTL)
        assert all(p[2] != "decode-0" for r in h.routers for p in placements(h, r))
        assert Metrics(h.page("decode-0")).sum("kvasir_discovery_up") == 1, "it lost etcd too: nothing was shown"
        wait_for("its pages are back, though nobody tells it anything", 10 * SLOW, lambda: Metrics(h.page("decode-0")).sum("kvasir_kv_pages", state="held") == 0)
        h.net.heal()
        back = h.all_ready()
        load.go_on(9)
        print(f"        noticed after {max(took):.2f} s (promised {HANG:g}), back after {back:.2f} s")
        load.over.set()
        h.idle(20)


def test_a_new_life_that_one_router_has_not_heard_of():
    """router-0 is cut off from etcd when decode-0 dies and comes back at the same address: it must not take the new one for the old one."""
    with Hosts(env=SLOWLY) as h, Streams(h, known(), clients=9) as load:
        load.all_run()
        old = h.epochs("router-0")["decode-0"]
        wall = time.time()
        h.net.cut("router-0", "etcd")
        h.noticed("router-0", "discovery lost", wall, seconds=TTL)
        h.kill("decode-0")
        h.again("decode-0")
        h.ready("router-1")
        wait_for("router-1 knows its new life", 30 * SLOW, lambda: h.epochs("router-1").get("decode-0") not in (None, old, "0" * 16))
        new = h.epochs("router-1")["decode-0"]
        load.go_on(18)
        mine = {w["id"]: (w["state"], w["epoch"]) for w in h.router["router-0"].status()["workers"]}.get("decode-0")
        print(f"        router-0 has {mine} of it meanwhile")
        assert mine is None or mine[0] != "ready" or mine[1] == new, "the new process under the old epoch"
        h.net.heal()
        h.all_ready()
        assert h.epochs("router-0")["decode-0"] == new
        load.go_on(9)
        load.over.set()
        h.idle(20)


def test_half_open():
    """A host loses its wire, its daemon dies without a FIN reaching anybody, and is back at the same address before anybody was missed."""
    with Hosts(env=SLOWLY) as h, Streams(h, known(), clients=12) as load:
        for name in ("decode-0", "prefill-0"):
            load.all_run()
            old = h.epochs("router-0")[name]
            wall, start = time.time(), time.monotonic()
            h.net.cut_off(name)
            h.kill(name)
            h.again(name)
            h.net.heal()
            took = [h.noticed(r, "worker lost", wall, f"worker={name}", seconds=HANG) for r in h.routers]
            for r in h.routers:
                wait_for(f"{r} knows its new life", 30 * SLOW, lambda: h.epochs(r).get(name) not in (None, old, "0" * 16))
            back = h.all_ready()
            assert h.epochs("router-0")[name] == h.epochs("router-1")[name]
            load.go_on(12)
            print(f"        {name}: noticed after {min(took):.2f} to {max(took):.2f} s (promised {HANG:g}), whole again {back:.2f} s later, longest pause "
                  f"{load.pause_since(start):.2f} s", flush=True)
        load.over.set()
        h.idle(20)


GHOST = """
import socket, sys, json, time
host, n = sys.argv[1], int(sys.argv[2])
all = []
for i in range(n):
    s = socket.create_connection((host, 8080), timeout=20)
    body = json.dumps({"model": "m", "prompt": [1] + [403] * (20 + i), "max_tokens": 400, "ignore_eos": True, "stream": i % 4 != 3})
    s.sendall(f"POST /v1/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}".encode())
    all.append(s)
for i, s in enumerate(all):
    if i % 4 != 3:
        s.recv(100)
print("streaming", flush=True)
time.sleep(600)
"""


def test_clients_that_vanish():
    """A host with 12 clients is gone without a FIN, some before their answer has begun: their sequences end long before their deadline."""
    with Hosts(prefill=1, decode=2, routers=1, env={"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:60@1+"}, more_hosts=["ghost"]) as h:
        router = h.router["router-0"]
        p = subprocess.Popen(h.net.inside("ghost") + [sys.executable, "-c", GHOST, h.net.address("router-0"), "12"], stdout=subprocess.PIPE,
                             preexec_fn=die_with_parent)
        try:
            assert p.stdout.readline() == b"streaming\n"
            wait_for("all run", 30 * SLOW, lambda: router.metrics_now().sum("kvasir_router_requests", state="running") == 12)
            h.net.cut_off("ghost")
            start = time.monotonic()
        finally:
            p.kill()
            p.wait()
            p.stdout.close()
        wait_for("the router gives them up", 150 * SLOW, lambda: router.metrics_now().sum("kvasir_router_requests", state="running") == 0, 0.2)
        took = time.monotonic() - start
        print(f"        12 clients given up after {took:.1f} s (promised 15), pages back after {h.idle(20):.2f} s")
        h.net.heal()


SLOW_READER = """
import socket, sys, json, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
s.settimeout(200)
s.connect((sys.argv[1], 8080))
body = json.dumps({"model": "m", "prompt": [1] + [403] * 20, "max_tokens": 450, "ignore_eos": True, "stream": True, "n": 8, "temperature": 1, "seed": 1,
                   "return_token_ids": True, "kvasir": {"logits": True}})
s.sendall(f"POST /v1/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}".encode())
got = s.recv(100)
print("streaming", flush=True)
time.sleep(float(sys.argv[2]))
while not got.endswith(b"0\\r\\n\\r\\n"):
    more = s.recv(65536)
    if not more:
        print("broken", len(got), flush=True)
        sys.exit(1)
    got += more
print(got.count(b"token_ids"), got.count(b"[DONE]"), flush=True)
"""


def test_a_client_that_only_reads_slowly():
    """The companion: one that takes nothing for longer than that, its window shut, is not given up."""
    with Hosts(prefill=1, decode=1, routers=1, more_hosts=["ghost"]) as h:
        p = subprocess.Popen(h.net.inside("ghost") + [sys.executable, "-c", SLOW_READER, h.net.address("router-0"), "25"], stdout=subprocess.PIPE,
                             preexec_fn=die_with_parent)
        try:
            assert p.stdout.readline() == b"streaming\n"
            time.sleep(20)
            shut = subprocess.run(h.net.inside("router-0") + ["ss", "-tinH", "dst", h.net.address("ghost")], capture_output=True, text=True, timeout=30)
            print("        " + " ".join(w for w in shut.stdout.split() if w.startswith(("persist", "timer", "notsent", "unacked", "lastack", "backoff"))))
            said = p.stdout.readline().decode().split()
            assert said and said[-1] == "1", f"the stream was broken: {said}"
            print(f"        {said[0]} events read in the end")
        finally:
            p.kill()
            p.wait()
            p.stdout.close()
        h.idle(20)


if __name__ == "__main__":
    main()
