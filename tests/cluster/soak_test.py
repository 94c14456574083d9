# soak_test.py - a cluster under load for a long time with a fault again and again: daemons killed, stopped, cut off, pairs cut, etcd gone,
# clients that leave. KVASIR_SOAK_SECONDS (40; the long run is 600) and KVASIR_SOAK_EVERY (seconds between faults: 3; long: 10) say how long,
# KVASIR_SOAK_SEED which faults. Resident memory and descriptors of the daemons that live throughout must be flat: the others are killed often
# enough to prove nothing. As everywhere: no wrong token, no error while somebody else could serve, no page missing at the end.
# SPDX-License-Identifier: Apache-2.0
from kvasir_net import *

SECONDS = float(os.environ.get("KVASIR_SOAK_SECONDS", "40"))
EVERY = float(os.environ.get("KVASIR_SOAK_EVERY", "3" if SECONDS < 200 else "10"))
SEED = int(os.environ.get("KVASIR_SOAK_SEED", "20261130")) or random.SystemRandom().randrange(1, 1 << 31)
WARM = 20 * SLOW  # seconds until pools have their size; the caches have been full by then
FLAT_BYTES = 1 << 20
FLAT_FDS = 8
FEW = 20  # free pages of a cache that is full


class Gauge:
    """Resident bytes and descriptors of the daemons that live throughout, over time."""

    def __init__(self, h, names):
        self.h, self.names = h, names
        self.rows = {n: [] for n in names}

    def read(self, name):
        pid = self.h.pid(name)
        with open(f"/proc/{pid}/statm") as f:
            resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return time.monotonic(), resident, len(os.listdir(f"/proc/{pid}/fd"))

    def take(self):
        for n in self.names:
            self.rows[n].append(self.read(n))

    def tell(self, start_fds):
        for n in self.names:
            rows = self.rows[n]
            size = max(1, len(rows) // 4)
            quarters = [sorted(r[1] for r in rows[k * size:(k + 1) * size])[size // 2] for k in range(4)] if len(rows) >= 4 else [rows[0][1], rows[-1][1]]
            fds = self.read(n)[2]
            print(f"        {n}: resident by quarters {', '.join(f'{q / 2**20:.1f}' for q in quarters)} MiB, descriptors {start_fds[n]} before, "
                  f"{max(r[2] for r in rows)} at most, {fds} at rest")
            assert quarters[-1] - quarters[0] < FLAT_BYTES, f"{n} grows: {quarters}"
            assert fds <= start_fds[n] + FLAT_FDS, f"{n}: {fds} descriptors at rest, {start_fds[n]} before"


class Nemesis:
    def __init__(self, h, load, rng, spared):
        self.h, self.load, self.rng, self.spared = h, load, rng, spared
        self.count = {}

    def one(self):
        h, rng = self.h, self.rng
        kind = rng.choice(["kill", "kill", "stop", "cut", "deaf", "mute", "pair", "blip"])
        name = rng.choice(h.workers * 2 + ["router-0", "etcd"])
        seconds = rng.choice([0.3, 1.2, 2.5, 4])
        if kind == "kill" and name in self.spared:
            name = rng.choice([w for w in h.workers if w not in self.spared])
        if kind in ("pair", "blip"):
            name = rng.choice(h.workers)
        self.count[kind] = self.count.get(kind, 0) + 1
        if name == "router-0":
            self.load.excused.add(name)
        getattr(self, "do_" + kind)(name, seconds)
        if name == "router-0":
            h.ready(name)
            time.sleep(1)  # for clients that are still to hear of it
            self.load.excused.discard(name)

    def do_kill(self, name, seconds):
        self.h.kill(name)
        time.sleep(seconds)
        self.h.again(name)

    def do_stop(self, name, seconds):
        self.h.process[name].signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.h.process[name].signal(signal.SIGCONT)

    def do_cut(self, name, seconds, ways=("in", "out")):
        self.h.net.cut_off(name, ways)
        time.sleep(seconds)
        self.h.net.heal()

    def do_deaf(self, name, seconds):
        self.do_cut(name, seconds, ("in",))

    def do_mute(self, name, seconds):
        self.do_cut(name, seconds, ("out",))

    def do_pair(self, name, seconds):
        self.h.net.cut(name, self.rng.choice([w for w in self.h.workers if w != name]))
        time.sleep(seconds)
        self.h.net.heal()

    def do_blip(self, name, seconds):
        """Many short ones, none long enough to be called dead."""
        for _ in range(5):
            self.do_cut(name, 0.2)
            time.sleep(0.1)


def fill(h, rng):
    """Long prompts that nobody has cached: they take pages on a prefill and on a decode worker."""
    for _ in range(4):
        answer = h.router["router-1"].complete([rng.randrange(3, 500) for _ in range(300)], 1, "remote")
        assert answer.status == 200, answer.body


def test_soak():
    known = Known(60)
    rng = random.Random(SEED)
    print(f"        KVASIR_SOAK_SECONDS={SECONDS:g} KVASIR_SOAK_EVERY={EVERY:g} KVASIR_SOAK_SEED={SEED}")
    spared = ["prefill-2", "decode-2", "router-1"]
    with Hosts(env={"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:1@1+"}, worker_flags=["--kv-memory", "2M"]) as h:
        gauge = Gauge(h, spared)
        with Streams(h, known, leave=0.1) as load:
            load.go_on(40)
            warm = time.monotonic()
            nemesis = Nemesis(h, load, rng, spared)
            full = set()
            while time.monotonic() < warm + WARM or len(full) < 2:
                assert time.monotonic() < warm + 10 * WARM, f"only the caches of {full} have been full: pages would be touched for the first time later"
                fill(h, nemesis.rng)
                load.check()
                full |= {w for w in spared[:2] if h.router["router-1"].metrics().sum("kvasir_kv_pages", worker=w, state="free") < FEW}
            start_fds = {n: gauge.read(n)[2] for n in spared}
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                next_at = time.monotonic() + EVERY
                nemesis.one()
                load.check()
                while True:
                    gauge.take()
                    if time.monotonic() >= next_at:
                        break
                    time.sleep(min(1, max(0, next_at - time.monotonic())))
            whole = h.all_ready()
            load.go_on(20)
        print(f"        {load.done} streams right, {load.left} left by their client, {len(load.broken)} broke with their router; "
              + ", ".join(f"{v} {k}" for k, v in sorted(nemesis.count.items())) + f"; whole {whole:.2f} s after the end")
        print(f"        pages back after {h.idle(20):.2f} s")
        gauge.tell(start_fds)
        for name in h.workers + h.routers:
            assert h.process[name].popen.poll() is None, f"{name} ended by itself"


if __name__ == "__main__":
    main()
