# net_faults_test.py - every daemon, and etcd, is killed, stopped and cut off (both ways, one way) while 20 clients read streams from three
# prefill and three decode workers behind two routers, each on a host of its own. Times are printed beside the promised ones; a loaded machine
# may take ten times as long. What is never allowed: a wrong, lost or doubled token, a client that hangs, an error while another worker lives,
# a page that does not come back.
# SPDX-License-Identifier: Apache-2.0
from kvasir_net import *

CRASH, HANG = 0.1, 3.0  # seconds, promised
LENGTH = 60
SLOWLY = {"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:2@1+"}
FAULTS = ("kill", "stop", "cut", "deaf", "mute")


def do(h, name, fault):
    """The fault; returns what ends it."""
    if fault == "kill":
        h.kill(name)
        return lambda: h.again(name)
    if fault == "stop":
        h.process[name].signal(signal.SIGSTOP)
        return lambda: h.process[name].signal(signal.SIGCONT)
    h.net.cut_off(name, {"cut": ("in", "out"), "deaf": ("in",), "mute": ("out",)}[fault])
    return h.net.heal


def promised(fault):
    return CRASH if fault == "kill" else HANG


def observers(h, name):
    """Who must notice, and by which line of its log."""
    if name.startswith("router"):
        return [(w, "control stream lost", ()) for w in h.workers]
    if name == "etcd":
        return []
    out = [(r, "worker lost", (f"worker={name}",)) for r in h.routers]
    others = h.decodes if name in h.prefills else h.prefills
    return out + [(w, "peer lost", (f"peer={name}",)) for w in others]


def one_fault(h, load, name, fault):
    load.all_run()
    if name in h.routers and fault != "stop":  # one that was stopped finds its streams closed, and goes on with its requests all the same
        load.excused.add(name)
    broken = len(load.broken)
    wall, start = time.time(), time.monotonic()
    end = do(h, name, fault)
    limit = promised(fault)
    times = [h.noticed(who, words, wall, *fields, seconds=max(limit, 0.5)) for who, words, fields in observers(h, name)]
    load.go_on(20)  # the rest of the cluster serves meanwhile
    held = time.monotonic() - start
    if held < 4:
        time.sleep(4 - held)  # longer than anything that waits for its return
    load.check()
    end()
    back = h.all_ready()
    load.go_on(20)
    broke = len(load.broken) - broken
    load.excused.discard(name)
    noticed = f"noticed after {min(times):.2f} to {max(times):.2f} s (promised {limit:g})" if times else "nobody needs to notice"
    print(f"        {name} {fault}: {noticed}, longest pause {load.pause_since(start):.2f} s, whole again {back:.2f} s later"
          + (f", {broke} requests broke" if name in h.routers else ""), flush=True)
    return max(times, default=0), limit


def matrix(names):
    known = Known(LENGTH)
    with Hosts(env=SLOWLY) as h:
        worst = {}
        with Streams(h, known) as load:
            load.go_on(20)
            for name in names:
                for fault in FAULTS:
                    took, limit = one_fault(h, load, name, fault)
                    worst[limit] = max(worst.get(limit, 0), took)
        print(f"        {load.done} streams, all right; {len(load.broken)} broke with their router; "
              + ", ".join(f"worst {w:.2f} s of {limit:g} promised" for limit, w in sorted(worst.items())))
        print(f"        pages back after {h.idle(20):.2f} s")
        for limit, w in worst.items():
            assert w <= max(limit, 0.5) * HELD, f"noticed after {w:.2f} s, promised {limit} s"
        for name in h.workers + h.routers:
            assert h.process[name].popen.poll() is None, f"{name} ended by itself"


def test_a_prefill_worker():
    matrix(["prefill-0"])


def test_a_decode_worker():
    matrix(["decode-0"])


def test_a_router():
    matrix(["router-0"])


def test_etcd():
    matrix(["etcd"])


if __name__ == "__main__":
    main()
