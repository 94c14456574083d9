# stranger_test.py - a member that speaks UCX well and our protocol badly, against running workers, on both lanes: it registers, links, is asked
# for pages like anybody, and sends every kind of message that must be declined, pages that are not what they say, the same page twice, lengths
# beyond all bounds; it dies in the midst of a send; hundreds of connections to the UCX ports stay half-open. Meanwhile honest requests get the
# right answers, the counters say what was declined and why, and afterwards descriptors, memory and pages are as before.
# The sender is tests/unit/kvtransfer/hostile_helper.c, told what to do over its stdin.
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import struct
import threading

from hostile_test import Fortress
from kvasir_cluster import *
from kvasir_wire import *

EPOCH = 1000  # the helper's
PAGE = 16 * 2 * STORIES_KV * 4  # block_tokens, layers of group 0, f32
HELLO_FORMAT, ORDER_FORMAT, DONE_FORMAT = "@QQI1024s0Q16sQIIQQI0QQ", "@QQQQIIQI4x", "@QII"
HELPER = os.path.join(os.path.dirname(BIN), "tests", "test_kvtransfer_hostile_helper")
LIVE, DIE = 2, 3
LANES = {"tcp": 0, "near": 1}


def packed_numbers(b):
    out, v, shift = [], 0, 0
    for x in b:
        v |= (x & 127) << shift
        shift += 7
        if x < 128:
            out.append(v)
            v = shift = 0
    return out


class Stranger(threading.Thread):
    """One link to one worker: a control stream by hand and a helper process that sends. The thread answers heartbeats and calls for pages."""

    def __init__(self, fortress, worker, lane, how=LIVE):
        super().__init__(daemon=True)
        self.f, self.worker, self.how, self.posted, self.attacks, self.stop, self.failure = fortress, worker, how, 0, 0, False, None
        self.helper = subprocess.Popen([HELPER, lane], stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent, bufsize=0)
        try:
            self.link(lane)
        except BaseException:
            self.kill()
            raise
        self.start()

    def read(self, fmt, seconds=30 * SLOW):
        """A struct from the helper, heartbeats answered meanwhile."""
        out, end = b"", time.monotonic() + seconds
        while len(out) < struct.calcsize(fmt):
            if select.select([self.helper.stdout], [], [], 0.02)[0]:
                more = os.read(self.helper.stdout.fileno(), struct.calcsize(fmt) - len(out))
                assert more, f"the helper ended with {self.helper.wait(5)}"
                out += more
            elif hasattr(self, "control"):
                self.control.next(0.001)
            assert time.monotonic() < end, "the helper says nothing"
        return struct.unpack(fmt, out)

    def link(self, lane):
        (_, _, n, address, boot, namespace, uid, pid, where, value, _, checksum) = self.read(HELLO_FORMAT)
        epoch = dict(fields(self.f.cards[self.worker]))[3]
        near, before = LANES[lane], self.linked()
        self.control = Control(self.f.url[self.worker])
        self.control.send(frame(HELLO, 0, num(1, 1) + num(2, 1) + data(3, "aaa-stranger") + fixed64(4, EPOCH) + num(5, PREFILL_ROLE)
                                + data(6, self.f.fingerprint) + data(7, self.f.numerics) + data(9, boot) + fixed64(10, namespace) + num(11, uid)
                                + num(12, pid) + fixed64(13, where) + fixed64(14, value)))

        def verdict():
            stream = self.control.call(LINK, link(near_ok=near))
            return self.answer(stream)
        wait_for("the first exchange", 10 * SLOW, lambda: verdict() is not None, 0.1)
        answer = self.answer(self.control.call(LINK, link(near_ok=near, address=address[:n], check=checksum ^ EPOCH ^ epoch)))
        theirs = dict(fields(answer))[3]
        self.helper.stdin.write(struct.pack(HELLO_FORMAT, epoch, 0, len(theirs), theirs, b"", 0, 0, 0, 0, 0, near, 0))
        wait_for("the link is up", 30 * SLOW, lambda: (self.control.next(0.01), self.linked() > before)[1], 0.02)

    def linked(self):
        return self.f.c.log(self.worker).count('msg="peer linked" peer=aaa-stranger')

    def answer(self, stream):
        """The ITEM of a call; None when it was refused."""
        item = None
        while got := self.control.next(10 * SLOW):
            kind, of, payload = got
            assert kind != GOAWAY, payload
            if of == stream and kind == ITEM:
                item = payload
            if of == stream and kind == END:
                return item if dict(fields(payload)).get(1, 0) == 0 else None
        raise AssertionError(f"{self.worker} closed the stream")

    def order(self, epoch, xfer, nonce, blocks, how):
        self.helper.stdin.write(struct.pack(ORDER_FORMAT, epoch, xfer, nonce, PAGE, blocks, 1, 0, how))

    def attack(self, stream, call_):
        asked = dict(fields(dict(fields(call_))[4]))
        self.order(asked[3], asked[2], asked[4], max(packed_numbers(asked[6])) + 1, self.how)
        self.attacks += 1
        if self.how == DIE:
            return
        _, posted, _ = self.read(DONE_FORMAT)
        self.posted += posted
        self.control.send(frame(END, stream, num(3, 1)))

    def burst(self):
        """Without being asked: no transfer is theirs."""
        self.wanted = True

    wanted = False

    def run(self):
        try:
            while not self.stop:
                if self.wanted:
                    self.wanted = False
                    self.order(dict(fields(self.f.cards[self.worker]))[3], 12345, 6789, 2, LIVE)
                    self.posted += self.read(DONE_FORMAT)[1]
                    self.attacks += 1
                got = self.control.next(0.05)
                if got is False:
                    return
                if got and got[0] == CALL and dict(fields(got[2])).get(1) in (PREFILL, FETCH):
                    self.attack(got[1], got[2])
        except BaseException as e:
            if not self.killed:
                self.failure = e

    killed = False

    def kill(self):
        self.stop = self.killed = True
        self.helper.kill()
        self.helper.wait(10)
        for pipe in (self.helper.stdin, self.helper.stdout):
            pipe.close()
        if hasattr(self, "control"):
            self.control.close()


class Member(threading.Thread):
    """The registration at the router, kept alive."""

    def __init__(self, f):
        super().__init__(daemon=True)
        self.control, self.stop = Control(f.url["router"], id="aaa-stranger", epoch=EPOCH, role=PREFILL_ROLE, fingerprint=f.fingerprint,
                                          numerics=f.numerics.decode()), False
        self.control.call(REGISTER, f.card("prefill-0", f1=b"aaa-stranger", f3=EPOCH, f4=b"ipc:///nowhere"))
        self.start()

    def run(self):
        while not self.stop and self.control.next(0.2) is not False:
            pass

    def end(self):
        self.stop = True
        self.join(5)
        self.control.close()


class Honest(threading.Thread):
    """Requests by remote prefill, one after the other."""

    def __init__(self, f):
        super().__init__(daemon=True)
        self.f, self.over, self.by, self.failure = f, threading.Event(), [], None
        self.start()

    def run(self):
        try:
            while not self.over.is_set():
                answer = self.f.c.complete(self.f.prompt, 8, "remote")
                assert answer.choice()["token_ids"] == self.f.want, f"wrong tokens: {answer.body[:300]}"
                self.by.append((answer.placement()["mode"], answer.placement()["prefill"]))
        except BaseException as e:
            self.failure = e


def declined(c, worker):
    m = c.metrics()
    return {have["reason"]: v for n, have, v in m.samples if n == "kvasir_kv_declined_total" and have.get("worker") == worker}


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def listening(pid):
    """TCP ports that the process listens on (UCX's: it has an address for each peer)."""
    inodes = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if os.path.islink(f"/proc/{pid}/fd/{fd}")}
    ports = []
    with open(f"/proc/{pid}/net/tcp") as f:
        for line in f.readlines()[1:]:
            part = line.split()
            if part[3] == "0A" and f"socket:[{part[9]}]" in inodes:
                ports.append(int(part[1].split(":")[1], 16))
    return ports


def half_open(pid, n):
    """Connections to its UCX ports; one of a peer that has just gone refuses."""
    out, ports, end = [], listening(pid), time.monotonic() + 30 * SLOW
    while len(out) < n:
        assert ports and time.monotonic() < end, f"{len(out)} connections of {n}, ports {ports}"
        s = socket.socket()
        s.settimeout(5)
        try:
            s.connect(("127.0.0.1", ports[len(out) % len(ports)]))
            out.append(s)
        except ConnectionRefusedError:
            s.close()
            ports = listening(pid)
    return out


def at_rest(f, worker, want, what):
    pid = f.pids[worker]
    wait_for(f"{worker}: descriptors after {what}", 20 * SLOW, lambda: descriptors(pid) <= want, 0.2)


def ask(f, lane):
    answer = f.c.complete(f.prompt, 8, kvasir={"placement": "local", "fetch": "aaa-stranger", "logits": True}, seconds=60 * SLOW)
    assert answer.choice()["token_ids"] == f.want, f"wrong tokens after {lane}: {answer.body[:300]}"


def dies_in_mid_send(f, lane):
    """It announces what it never sends, and is killed when it has been asked for pages; who waits for them gets its answer soon after."""
    s = Stranger(f, "decode-0", lane, DIE)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            until, waiting = time.monotonic() + 20 * SLOW, None
            while waiting is None or not s.attacks:
                waiting = pool.submit(ask, f, lane)
                wait_for("asked, or answered without it", 20 * SLOW, lambda: s.attacks or waiting.done() or s.failure, 0.01)
                assert s.failure is None and time.monotonic() < until, s.failure
            time.sleep(0.1)
            assert not waiting.done() or waiting.exception() is None, waiting.exception()
        finally:
            s.kill()
        start = time.monotonic()
        waiting.result(30 * SLOW)
        return time.monotonic() - start


def never_ends(f, lane):
    """It begins to send, answers its heartbeats, and says no more: the request does not wait for its own end (some minutes)."""
    s = Stranger(f, "decode-0", lane, DIE)
    before = f.c.metrics().sum("kvasir_kv_stalled_total", worker="decode-0")
    try:
        for _ in range(20):
            start = time.monotonic()
            ask(f, lane)
            if s.attacks:
                break
        assert s.attacks and s.failure is None, s.failure
        wait_for("it was given up", 60 * SLOW, lambda: f.c.metrics().sum("kvasir_kv_stalled_total", worker="decode-0") > before)
        return time.monotonic() - start
    finally:
        s.kill()


def round_of(f, lane, rounds=3):
    """Links, has itself asked for pages, sends what it sends; how many messages it posted at each worker."""
    at = {worker: Stranger(f, worker, lane) for worker in ("decode-0", "prefill-0")}
    try:
        for i in range(rounds):
            before = at["decode-0"].attacks

            def asked():
                ask(f, lane)
                return at["decode-0"].attacks > before or at["decode-0"].failure
            wait_for("it is asked for pages", 20 * SLOW, asked)
            at["prefill-0"].burst()
            wait_for("the burst at prefill-0", 30 * SLOW, lambda: at["prefill-0"].attacks > i or at["prefill-0"].failure)
        for s in at.values():  # an attack under way is counted whole
            s.stop = True
            s.join(30 * SLOW)
        assert not any(s.failure for s in at.values()), [s.failure for s in at.values()]
        return {worker: (s.posted, s.attacks) for worker, s in at.items()}
    finally:
        for s in at.values():
            s.kill()


def survives(lane):
    need(STORIES, "stories260K")
    with Cluster(STORIES, "--context", 512, "--kv-type", "f32", "--block-tokens", 16, "--group-layers", 2, "--kv-memory", "4M",
                 "--transport", "auto" if lane == "near" else "tcp") as c:
        f = Fortress(c)
        f.prompt = [1] + [403] * 100
        member, honest = Member(f), [Honest(f) for _ in range(2)]
        round_of(f, lane, 1)
        rest = {w: descriptors(p) for w, p in f.pids.items()}
        before = {w: declined(c, w) for w in ("decode-0", "prefill-0")}
        memory = {w: resident(p) for w, p in f.pids.items()}
        sent = {"decode-0": [0, 0], "prefill-0": [0, 0]}
        for _ in range(3):
            for worker, (posted, attacks) in round_of(f, lane).items():
                sent[worker][0] += posted
                sent[worker][1] += attacks
        for worker, (posted, attacks) in sent.items():
            taken = attacks if worker == "decode-0" else 0  # the last block's page, once
            after = declined(c, worker)
            rise = {k: after[k] - before[worker].get(k, 0) for k in after if after[k] != before[worker].get(k, 0)}
            print(f"        {lane} {worker}: {posted} messages in {attacks} attacks, declined {rise}")
            assert attacks >= 9 and posted > 200 * attacks
            assert sum(rise.values()) == posted - taken, f"{worker}: {sum(rise.values())} declined of {posted} posted, {taken} good"
            for reason in ("header", "version", "epoch", "xfer") + (("nonce", "index", "length", "double", "checksum") if taken else ()):
                assert rise.get(reason, 0) > 0, f"{worker}: nothing declined for its {reason}"
        print(f"        {lane}: killed in mid-send, the answer came after " + ", ".join(f"{dies_in_mid_send(f, lane):.2f}" for _ in range(4)) + " s")
        print(f"        {lane}: begun and never ended, the answer came after {never_ends(f, lane):.1f} s")
        crowd = []
        for worker in ("decode-0", "prefill-0"):
            crowd += half_open(f.pids[worker], 300)
        seen = len(honest[0].by)
        wait_for("honest requests beside half-open connections", 30 * SLOW, lambda: len(honest[0].by) > seen + 3 or honest[0].failure)
        for s in crowd:
            s.close()
        for h in honest:
            h.over.set()
            h.join(REQUEST_SECONDS)
            assert h.failure is None, h.failure
        member.end()
        by = [b for h in honest for b in h.by]
        assert ("remote", "prefill-0") in by, "no honest request went by remote prefill"
        for worker in f.pids:
            at_rest(f, worker, rest[worker] + 4, "all of it")
        grown = {w: resident(p) - memory[w] for w, p in f.pids.items()}
        print(f"        {lane}: {len(by)} honest requests right, {by.count(('remote', 'prefill-0'))} by prefill-0; memory grew by "
              f"{ {w: g >> 10 for w, g in grown.items()} } KiB")
        if SLOW == 1:  # sanitizers keep what is freed
            assert all(g < 16 << 20 for g in grown.values()), grown
        f.stands("a stranger")
        c.idle(20)


def test_a_member_that_sends_rubbish_over_tcp():
    survives("tcp")


def test_a_member_that_sends_rubbish_over_cma():
    survives("near")


if __name__ == "__main__":
    main()
