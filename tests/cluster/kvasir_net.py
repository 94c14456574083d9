# kvasir_net.py - a cluster of several hosts on one machine: a network namespace a daemon, one switch between them, and wires that can be cut
# without a word: both ways, one way, between any two. Nothing is told to either side, no reset, no ICMP: packets just do not arrive.
#
# A cut is a wrong hardware address for one neighbour: what is sent to it leaves the host and reaches nobody. The test itself is a host of
# the same network ("client"): it moves into a namespace of its own at the start. Rights are needed for all that; without them: Skip.
# SPDX-License-Identifier: Apache-2.0
import ctypes
import random
import sys
import threading

sys.path.insert(0, __file__.rsplit("/", 2)[0] + "/integration")
from kvasir_cluster import *  # noqa: E402
from etcd_test import Etcd, Process, Router, ip  # noqa: E402

SHAPE = ["--context", "512", "--kv-type", "f32", "--block-tokens", "16", "--group-layers", "1", "--chunk-tokens", "16"]
NET = "10.213.78"
NOBODY = 0xFFFF
os.environ.setdefault("KVASIR_AUTH", f"one-key-for-all-hosts-{os.getpid()}")  # without one nobody listens beyond his own machine
HELD = 10 * SLOW  # how many times the promised time a loaded machine may take


def mac(number):
    return f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"


class Net:
    """Hosts by name; each has the address NET.number on its device kv0."""

    def __init__(self, hosts):
        self.hosts = ["client"] + list(hosts)
        self.number = {h: i + 1 for i, h in enumerate(self.hosts)}
        self.cuts = set()  # (from, to)
        self.made = []
        self.home = None

    def space(self, host):
        return f"kvc-{os.getpid()}-{host}"

    def address(self, host):
        return f"{NET}.{self.number[host]}"

    def inside(self, host):
        return ["ip", "netns", "exec", self.space(host)]

    def make(self, host):
        r = ip("netns", "add", self.space(host))
        if r.returncode != 0:
            raise Skip(f"no network namespace can be made here: {r.stderr.strip()}")
        self.made.append(host)

    def batch(self, host, lines):
        r = subprocess.run(["ip", "-n", self.space(host), "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=30)
        assert r.returncode == 0, f"{host}: {lines}: {r.stderr}"

    def __enter__(self):
        if os.environ.get("KVASIR_CLUSTER_TESTS") != "1":
            raise Skip("a quarter of an hour, and a machine for itself: set KVASIR_CLUSTER_TESTS=1")
        if not shutil.which("ip") or os.geteuid() != 0:
            raise Skip("network namespaces need the program ip and the rights to make them")
        self.home = open("/proc/self/ns/net")
        try:
            self.build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def build(self):
        self.make("switch")
        if ip("-n", self.space("switch"), "link", "add", "br0", "type", "bridge").returncode != 0:
            raise Skip("no bridge can be made here")
        self.batch("switch", ["link set br0 up"])
        for h in self.hosts:
            self.make(h)
            n = self.number[h]
            r = ip("-n", self.space("switch"), "link", "add", f"p{n}", "type", "veth", "peer", "name", "kv0", "netns", self.space(h))
            if r.returncode != 0:
                raise Skip(f"no veth pair can be made here: {r.stderr.strip()}")
            self.batch("switch", [f"link set p{n} master br0", f"link set p{n} up"])
            self.batch(h, ["link set lo up", f"link set kv0 address {mac(n)}", f"addr add {self.address(h)}/24 dev kv0", "link set kv0 up"])
        for h in self.hosts:
            self.batch(h, [self.neighbour(o, self.number[o]) for o in self.hosts if o != h])
        self.enter(self.space("client"))

    def neighbour(self, other, number):
        return f"neigh replace {self.address(other)} lladdr {mac(number)} dev kv0 nud permanent"

    def enter(self, space):
        with open(f"/var/run/netns/{space}") as f:
            self.set_namespace(f)

    @staticmethod
    def set_namespace(f):
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.setns(f.fileno(), 0x40000000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWNET

    def __exit__(self, kind, value, trace):
        if self.home:
            self.set_namespace(self.home)
            self.home.close()
        for h in self.made:
            ip("netns", "del", self.space(h))

    # wires
    def drop(self, a, b):
        """What a sends to b is lost from now on."""
        self.batch(a, [self.neighbour(b, NOBODY)])
        self.cuts.add((a, b))

    def cut(self, a, b):
        self.drop(a, b)
        self.drop(b, a)

    def cut_off(self, host, ways=("in", "out"), but=("client",)):
        """host and all others no longer hear each other (one way: only in or only out)."""
        for o in self.hosts:
            if o == host or o in but:
                continue
            if "out" in ways:
                self.drop(host, o)
            if "in" in ways:
                self.drop(o, host)

    def heal(self):
        for a, b in sorted(self.cuts):
            self.batch(a, [self.neighbour(b, self.number[b])])
        self.cuts = set()


class Hosts:
    """etcd, routers and workers, each on its host."""

    def __init__(self, prefill=3, decode=3, routers=2, env=None, worker_flags=(), more_hosts=()):
        self.routers = [f"router-{i}" for i in range(routers)]
        self.prefills = [f"prefill-{i}" for i in range(prefill)]
        self.decodes = [f"decode-{i}" for i in range(decode)]
        self.workers = self.prefills + self.decodes
        self.env, self.flags = env or {}, list(worker_flags)
        self.net = Net(["etcd"] + self.routers + self.workers + list(more_hosts))
        self.dir = tempfile.mkdtemp(prefix="kvasir-cl-")
        self.process, self.router = {}, {}

    def start(self):
        n = self.net
        self.process["etcd"] = Etcd(self.dir, n.address("etcd"), n.inside("etcd"))
        self.url = self.process["etcd"].url
        for name in self.workers:
            self.start_worker(name)
        for name in self.routers:
            self.start_router(name)
        for name in self.routers:
            self.router[name] = Router(self.process[name])
            self.ready(name)

    def epochs(self, router):
        return self.router[router].epochs()

    def start_worker(self, name):
        role, a = name.split("-")[0], self.net.address(name)
        args = [os.path.join(BIN, f"kvasir-{role}-worker"), "--name", name, "--model", STORIES, "--model-name", "m", "--discovery", self.url,
                "--control", f"tcp://{a}:9001", "--listen", f"{a}:9101", "--threads", "1", "--transport", "tcp", "--kv-memory", "16M", *SHAPE,
                *self.flags]
        self.process[name] = Process(self.dir, name, args, self.net.inside(name), {"UCX_NET_DEVICES": "kv0", **self.env})

    def start_router(self, name):
        a = self.net.address(name)
        args = [os.path.join(BIN, "kvasir-router"), "--name", name, "--listen", f"{a}:8080", "--control", f"tcp://{a}:9001", "--discovery", self.url]
        self.process[name] = Process(self.dir, name, args, self.net.inside(name), self.env)

    def pid(self, name):
        return self.process[name].popen.pid

    def linked(self, name):
        """All workers are ready at this router, and every decode worker is linked with all prefill workers."""
        try:
            seen = self.router[name].status()["workers"]
        except (OSError, ValueError, http.client.HTTPException):
            return False
        ready = {w["id"]: w for w in seen if w["state"] == "ready"}
        return set(ready) == set(self.workers) and all(set(self.prefills) <= {p["id"] for p in ready[d]["peers"]} for d in self.decodes)

    def ready(self, name):
        return wait_for(f"{name} has all workers, linked", START_SECONDS, lambda: self.linked(name), 0.1)[1]

    def all_ready(self):
        start = time.monotonic()
        for name in self.routers:
            self.ready(name)
        return time.monotonic() - start

    def lines(self, name, words, since, *fields):
        """When a daemon logged msg="words" with these fields, after `since` (wall clock)."""
        found = []
        for line in self.process[name].text().splitlines():
            m = re.match(r"time=(\S+)Z level=\S+ process=\S+ msg=\"([^\"]*)\"(.*)", line)
            if m and m.group(2) == words and all(re.search(rf"(^| ){re.escape(f)}( |$)", m.group(3)) for f in fields):
                t = time.strptime(m.group(1)[:19], "%Y-%m-%dT%H:%M:%S")
                at = __import__("calendar").timegm(t) + float("0" + m.group(1)[19:])
                if at >= since - 0.002:
                    found.append(at)
        return found

    def noticed(self, name, words, since, *fields, seconds=3):
        """Seconds after `since` at which it was logged; waits for it, ten times the promised time at most."""
        (at, *_), _ = wait_for(f"{name} logs \"{words}\" {' '.join(fields)}", seconds * HELD, lambda: self.lines(name, words, since, *fields), 0.02)
        return at - since

    def kill(self, name):
        self.process[name].kill()

    def again(self, name):
        """The same daemon, started anew."""
        self.process[name].start()
        if name in self.router:
            self.router[name] = Router(self.process[name])

    def __enter__(self):
        self.net.__enter__()
        try:
            self.start()
        except BaseException:
            self.__exit__(RuntimeError, None, None)
            raise
        return self

    def __exit__(self, kind, value, trace):
        if kind and kind is not Skip:
            for name, p in self.process.items():
                print(f"--- {name}\n{p.text()[-3000:]}")
        if not kind:
            self.check_logs()
        for p in self.process.values():
            with contextlib.suppress(ProcessLookupError):
                p.signal(signal.SIGCONT)
            p.kill()
        self.net.__exit__(kind, value, trace)
        shutil.rmtree(self.dir, ignore_errors=True)

    def check_logs(self):
        for name, p in self.process.items():
            found = re.search(r"(ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|assertion failed)", p.text())
            assert not found, f"{name}: {p.text()[found.start():found.start() + 4000]}"

    # pages
    def idle(self, seconds=10):
        """No page held or fenced at any worker, by each worker's own word; then the page equation, by group."""
        took = 0.0
        for name in self.workers:
            def settled():
                m = Metrics(self.page(name))
                return m if m.sum("kvasir_kv_pages", state="held") == 0 and m.sum("kvasir_kv_pages", state="fenced") == 0 else None
            m, t = wait_for(f"pages of {name} return", seconds * SLOW, settled)
            took = max(took, t)
            groups = {w["id"]: {str(g["group"]): g["total"] for g in w["pages"]} for w in self.router[self.routers[-1]].status()["workers"]}
            for group, total in groups[name].items():
                assert m.sum("kvasir_kv_pages", group=group) == total, f"pages of {name} group {group}: not {total} in all states"
        return took

    def page(self, name):
        c = http.client.HTTPConnection(self.net.address(name), 9101, timeout=10 * SLOW)
        try:
            c.request("GET", "/metrics")
            return c.getresponse().read().decode()
        finally:
            c.close()


class Known:
    """Prompts with the answers that one process alone gives: greedy ones, and sampled ones with a seed."""

    def __init__(self, n):
        need(STORIES, "stories260K")
        self.cases = []
        for i, row in enumerate(golden()[:10]):
            ids = row["prompt_ids"]
            for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 77 + i}):
                flags = [] if not sampling["temperature"] else ["--temperature", "0.8", "--seed", str(sampling["seed"])]
                rows = generate_alone(STORIES, ids, n, "--context", "512", "--kv-type", "f32", "--ignore-eos", *flags)
                self.cases.append(({"prompt": ids, "max_tokens": n, "ignore_eos": True, **sampling}, rows))


class Refused(Exception):
    """An honest end that is no answer: an error event, or a status of its own."""


class Streams:
    """A number of clients, each of which asks for one stream after the other; every token is compared, every end is judged."""

    def __init__(self, hosts, known, clients=20, end_seconds=60, leave=0.0):
        self.hosts, self.known, self.end_seconds, self.leave, self.left = hosts, known, end_seconds * SLOW, leave, 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self.done, self.broken, self.wrong, self.gaps = 0, [], [], []
        self.excused = set()  # routers whose connections may break
        self.threads = [threading.Thread(target=self.work, args=(i,), daemon=True) for i in range(clients)]
        self.where = [None] * clients
        for t in self.threads:
            t.start()

    def work(self, i):
        rng = random.Random(i)
        turn = i
        while not self.over.is_set() and not self.wrong:
            name = self.hosts.routers[i % len(self.hosts.routers)]  # always the same: a router that hangs holds only its own clients
            body, want = self.known.cases[turn % len(self.known.cases)]
            turn += 1
            place = rng.choice([None, "local", "remote", "remote"])
            start = time.monotonic()
            try:
                self.one(i, self.hosts.router[name], {**body, "return_token_ids": True, "kvasir": {"logits": True, **({"placement": place} if place else {})}}, want)
                with self.lock:
                    self.done += 1
            except (OSError, http.client.HTTPException) as e:
                if name not in self.excused:
                    self.fail(f"{name}: {e!r} after {time.monotonic() - start:.1f} s, {place}")
                with self.lock:
                    self.broken.append(repr(e))
                self.over.wait(0.2)
            except Refused as e:
                if name not in self.excused:
                    self.fail(f"{name}, {place}: {e} after {time.monotonic() - start:.1f} s")
                with self.lock:
                    self.broken.append(str(e))
                self.over.wait(0.2)
            except BaseException as e:
                self.fail(f"{name}, {place}: {e}")

    def fail(self, text):
        with self.lock:
            self.wrong.append(text)

    def one(self, i, router, body, want):
        rows, finish, last, rng = [], None, time.monotonic(), random.Random(f"{i} {self.done}")
        leaves_at = rng.randrange(len(want)) if rng.random() < self.leave else None
        s = router.stream("/v1/completions", body, seconds=self.end_seconds)
        try:
            if s.status != 200:
                raise Refused(f"HTTP {s.status}: {json.loads(s.response.read())['error']['message']}")
            for event in s.events():
                now = time.monotonic()
                if "error" in event:
                    assert not list(s.events()) and not s.done, "something after an error event"
                    same_as(rows, want[:len(rows)], "a stream that ended early")
                    raise Refused(f"an error event after {len(rows)} tokens: {event['error']['message']}")
                for choice in event["choices"]:
                    assert finish is None, "a choice after its finish reason"
                    rows += list(zip(choice["token_ids"], choice["kvasir"]["logits"]))
                    finish = choice["finish_reason"]
                self.where[i] = len(rows)
                if leaves_at is not None and len(rows) > leaves_at:
                    same_as(rows, want[:len(rows)], "a stream that was left")
                    self.left += 1
                    return
                with self.lock:
                    self.gaps.append((now, now - last))
                last = now
            if not s.done:
                raise ConnectionError(f"the stream ended without a word after {len(rows)} tokens")
            assert finish, "[DONE] without a finish reason"
            same_as(rows, want, "a stream")
        finally:
            self.where[i] = None
            s.close()

    def pause_since(self, start):
        with self.lock:
            return max((gap for at, gap in self.gaps if at >= start), default=0)

    def all_run(self):
        wait_for("all streams run", REQUEST_SECONDS, lambda: self.wrong or sum(bool(w) for w in self.where) >= len(self.where) * 3 // 4, 0.01)
        self.check()

    def go_on(self, streams):
        """So many more streams come to their ends, all right."""
        before = self.done
        wait_for(f"{streams} more streams end", REQUEST_SECONDS, lambda: self.wrong or self.done >= before + streams, 0.02)
        self.check()

    def check(self):
        assert not self.wrong, f"{len(self.wrong)} streams went wrong: {self.wrong[:3]}"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.over.set()
        for t in self.threads:
            t.join(self.end_seconds + 5)
        if kind is None:
            assert not any(t.is_alive() for t in self.threads), "a client hangs"
            self.check()
