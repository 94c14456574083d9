# etcd_test.py - a cluster whose members find each other through etcd: the private one of `kvasir up --etcd`, a given one, daemons started
# by hand, several routers, two network namespaces; and what happens when etcd dies, hangs, forgets everything or is cut off.
# What must hold throughout: requests go on, their tokens are right, and every daemon is again what it was (same epoch).
# SPDX-License-Identifier: Apache-2.0
import base64
import threading
import urllib.request

from kvasir_cluster import *

SHAPE = ["--context", "512", "--kv-type", "f32", "--block-tokens", "16", "--group-layers", "1", "--chunk-tokens", "7"]
TTL = 10  # seconds; the lease of every member
KEY = {"KVASIR_AUTH": "a-key-that-both-hosts-know"}


def etcd_program():
    path = shutil.which("etcd")
    if not path:
        raise Skip("the program etcd is not installed (package etcd-server)")
    return path


def row():
    need(STORIES, "stories260K")
    return golden()[11]


def wanted(n):
    return generate_alone(STORIES, row()["prompt_ids"], n, "--context", "512", "--kv-type", "f32")


class Process:
    """A daemon of ours with its log; ended by its pid, and with this test."""

    def __init__(self, directory, name, args, prefix=(), env=None):
        self.name, self.args, self.prefix, self.env = name, args, list(prefix), env
        self.path = os.path.join(directory, name + ".log")
        self.start()

    def start(self):
        with open(self.path, "a") as log:
            self.popen = subprocess.Popen(self.prefix + self.args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent,
                                          env={**os.environ, **(self.env or {})})

    def signal(self, sig):
        self.popen.send_signal(sig)

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def text(self):
        with open(self.path, errors="replace") as f:
            return f.read()


class Etcd(Process):
    def __init__(self, directory, host="127.0.0.1", prefix=()):
        self.data = os.path.join(directory, "etcd-data")
        self.port = free_port() if host == "127.0.0.1" else 2379
        self.peer = free_port() if host == "127.0.0.1" else 2380
        self.url = f"etcd://{host}:{self.port}"
        client, peer = f"http://{host}:{self.port}", f"http://{host}:{self.peer}"
        super().__init__(directory, "etcd", [etcd_program(), "--name", "one", "--data-dir", self.data, "--listen-client-urls", client,
                                             "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls",
                                             peer, "--initial-cluster", f"one={peer}", "--logger", "zap", "--log-outputs", "stderr",
                                             "--log-level", "warn"], prefix)

    def wipe(self):
        shutil.rmtree(self.data)


class EtcdNode(Process):
    """One of three."""

    def __init__(self, directory, i, ports):
        self.port = ports[i][0]
        client, peer = (f"http://127.0.0.1:{port}" for port in ports[i])
        cluster = ",".join(f"n{k}=http://127.0.0.1:{port}" for k, (_, port) in enumerate(ports))
        super().__init__(directory, f"etcd-{i}", [etcd_program(), "--name", f"n{i}", "--data-dir", os.path.join(directory, f"etcd-data-{i}"),
                                                  "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                                                  "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster, "--logger", "zap",
                                                  "--log-outputs", "stderr", "--log-level", "warn"])

    def status(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        with contextlib.closing(c), contextlib.suppress(OSError, ValueError):
            c.request("POST", "/v3/maintenance/status", "{}")
            return json.loads(c.getresponse().read())
        return {}

    def leads(self):
        """It says so itself: 0, or the term in which it leads."""
        seen = self.status()
        return int(seen["raftTerm"]) if "leader" in seen and seen["leader"] == seen["header"]["member_id"] else 0


class Door(threading.Thread):
    """A TCP forwarder that can be shut: what stands behind it is then cut off."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.to, self.open, self.ends = port, True, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                a, _ = self.listener.accept()
            except OSError:
                return
            if not self.open:
                a.close()
                continue
            try:
                b = socket.create_connection(("127.0.0.1", self.to), timeout=5)
                b.settimeout(None)
            except OSError:
                a.close()
                continue
            self.ends += [a, b]
            for x, y in ((a, b), (b, a)):
                threading.Thread(target=self.pump, args=(x, y), daemon=True).start()

    @staticmethod
    def pump(x, y):
        with contextlib.suppress(OSError):
            while data := x.recv(65536):
                y.sendall(data)
        for s in (x, y):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def shut(self):
        self.open = False
        for s in self.ends:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        self.ends = []


class Router(Cluster):
    """One router's face of a cluster whose daemons were started by hand."""

    def __init__(self, process):
        self.process = process
        found, _ = wait_for("the router listens", START_SECONDS, lambda: re.findall(r"http=http://(\S+):(\d+)", process.text()))
        self.host, self.port = found[-1][0], int(found[-1][1])

    def ready(self, workers, linked=True):
        def all_there():
            with contextlib.suppress(OSError, ValueError):
                seen = self.status()["workers"]
                ready = [w for w in seen if w["state"] == "ready"]
                decodes = [w for w in ready if w["role"] == "decode"]
                prefills = {w["id"] for w in ready if w["role"] == "prefill"}
                return len(ready) == workers and (not linked or all(prefills <= {p["id"] for p in w["peers"]} for w in decodes))
        return wait_for(f"{workers} workers are ready", START_SECONDS, all_there)[1]

    def epochs(self):
        return {w["id"]: w["epoch"] for w in self.status()["workers"]}

    def __exit__(self, kind, value, trace):
        pass


class ByHand:
    """etcd, routers and workers started one by one, as docs/OPERATING.md says."""

    def __init__(self):
        etcd_program()
        row()
        self.dir = tempfile.mkdtemp(prefix="kvasir-it-")
        self.processes = []

    def add(self, p):
        self.processes.append(p)
        return p

    def router(self, name, url, *more, prefix=(), env=None):
        return Router(self.add(Process(self.dir, name, [os.path.join(BIN, "kvasir-router"), "--name", name, "--listen", "127.0.0.1:0",
                                                        "--discovery", url, *more], prefix, env)))

    def worker(self, role, name, url, *more, prefix=(), control="tcp://127.0.0.1:0", env=None):
        return self.add(Process(self.dir, name, [os.path.join(BIN, f"kvasir-{role}-worker"), "--name", name, "--model", STORIES, "--model-name",
                                                 "m", "--discovery", url, "--control", control, "--threads", "1", "--kv-memory", "16M", *SHAPE,
                                                 *more], prefix, env))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            for p in self.processes:
                print(f"--- {p.name}\n{p.text()[-4000:]}")
        for p in self.processes:
            with contextlib.suppress(ProcessLookupError):
                p.signal(signal.SIGCONT)
            p.kill()
        broken = [p.name for p in self.processes if re.search(r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|assertion failed", p.text())]
        shutil.rmtree(self.dir, ignore_errors=True)
        assert kind or not broken, f"sanitizer or assertion in the logs of {broken}"


class Load:
    """Requests one after the other from several threads; every answer is compared."""

    def __init__(self, cluster, n=24, threads=3):
        self.want, self.n, self.cluster = wanted(n), n, cluster
        self.served, self.faults, self.slowest, self.stop = 0, [], 0.0, threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.work, args=(i,), daemon=True) for i in range(threads)]
        for t in self.threads:
            t.start()

    def work(self, i):
        while not self.stop.is_set():
            start = time.monotonic()
            try:
                same_as(rows_of(self.cluster.complete(row()["prompt_ids"], self.n, "remote" if i % 2 else "local")), self.want, "under load")
                fault = None
            except BaseException as e:
                fault = e
            with self.lock:
                self.slowest = max(self.slowest, time.monotonic() - start)
                self.served += fault is None
                if fault:
                    self.faults.append(fault)

    def go_on(self, seconds, at_least=3):
        """Lets it run; requests must be served meanwhile, all of them."""
        before = self.served
        time.sleep(seconds)
        wait_for("requests go on", 60 * SLOW, lambda: self.faults or self.served >= before + at_least)
        assert not self.faults, f"{len(self.faults)} requests failed: {self.faults[0]!r}"

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join(REQUEST_SECONDS)
        assert not self.faults, f"{len(self.faults)} requests failed: {self.faults[0]!r}"
        print(f"        {self.served} requests served, the slowest in {self.slowest:.2f} s")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.stop.set()
        if kind is None:
            self.end()


def check(cluster, n=24):
    want = wanted(n)
    for placement in ("remote", "local"):
        answer = cluster.complete(row()["prompt_ids"], n, placement)
        same_as(rows_of(answer), want, placement)
        assert answer.placement()["mode"] == placement, answer.placement()


def cli_epochs(cluster):
    r = run(["kvasir", "status", "--json", "--url", f"http://{cluster.host}:{cluster.port}"])
    assert r.returncode == 0, r.stderr
    return {w["id"]: w["epoch"] for w in json.loads(r.stdout)["workers"]}


def second_router_sees(h, url, name, workers, epochs):
    """A router that is new knows nothing but what etcd says."""
    other = h.router(name, url)
    took = other.ready(workers)
    assert other.epochs() == epochs, f"{other.epochs()} instead of {epochs}"
    check(other)
    print(f"        {name} ready after {took:.2f} s")
    return other


def test_up_with_its_own_etcd():
    etcd_program()
    row()
    with Cluster(STORIES, "--etcd", *SHAPE) as c:
        check(c)
        epochs = cli_epochs(c)
        assert set(epochs) == {"prefill-0", "decode-0"}
        with Load(c) as load:
            pid = c.kill("etcd")
            wait_for("etcd is started again", 60 * SLOW, lambda: os.path.exists(os.path.join(c.run_dir, "etcd.pid")) and c.pid("etcd") != pid)
            load.go_on(3)
            c.kill("etcd", signal.SIGSTOP)
            load.go_on(TTL + 3)
            c.kill("etcd", signal.SIGCONT)
            load.go_on(5)
        assert cli_epochs(c) == epochs
        check(c)
        c.kill("prefill-0")  # and who really dies is replaced under etcd, too
        wait_for("a new prefill worker", 60 * SLOW, lambda: cli_epochs(c).get("prefill-0") not in (None, epochs["prefill-0"]))
        c.seen_pids.add(c.pid("etcd"))
        wait_for("remote prefill works again", 60 * SLOW,
                 lambda: c.complete(row()["prompt_ids"], 8, "remote").placement()["mode"] == "remote", 0.2)


def test_a_given_etcd_and_a_second_router():
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))
        with Cluster(STORIES, "--discovery", etcd.url, "--cluster", "a", *SHAPE) as c:
            check(c)
            other = h.router("router-2", etcd.url, "--cluster", "a")
            other.ready(2)
            assert other.epochs() == cli_epochs(c)
            with Load(c, threads=2) as first, Load(other, threads=2) as second:
                first.go_on(2)
                second.go_on(2)
            stranger = h.router("router-3", etcd.url, "--cluster", "b")
            time.sleep(1)
            assert stranger.status()["workers"] == []
            assert stranger.get("/health/ready").status == 503
            os.kill(other.process.popen.pid, signal.SIGTERM)
            assert other.process.popen.wait(20 * SLOW) == 0
            check(c)


def test_etcd_dies_hangs_and_forgets():
    """Daemons by hand; every time a router that is new finds the same members with the same epochs."""
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))
        for name, role in (("prefill-0", "prefill"), ("decode-0", "decode"), ("decode-1", "decode")):
            h.worker(role, name, etcd.url)
        router = h.router("router-1", etcd.url)
        router.ready(3)
        epochs = router.epochs()
        def discovery_up():
            return router.metrics().values("kvasir_discovery_up", "worker", backend="etcd")
        assert discovery_up() == {None, "prefill-0", "decode-0", "decode-1"}
        assert router.metrics_now().get("kvasir_discovery_members") == 4
        silent = {have.get("worker"): v for n, have, v in router.metrics().samples if n.endswith("discovery_silent_watches_total")}
        assert silent == {None: 0, "prefill-0": 0, "decode-0": 0, "decode-1": 0}, silent
        with Load(router) as load:
            etcd.kill()
            load.go_on(TTL + 2)  # longer than the leases live
            assert discovery_up() == set()
            etcd.start()
            load.go_on(1)
            second_router_sees(h, etcd.url, "router-after-restart", 3, epochs)
            etcd.signal(signal.SIGSTOP)
            load.go_on(TTL + 2)
            etcd.signal(signal.SIGCONT)
            load.go_on(1)
            second_router_sees(h, etcd.url, "router-after-hang", 3, epochs)
            etcd.kill()
            etcd.wipe()
            load.go_on(1)
            etcd.start()
            load.go_on(1)
            second_router_sees(h, etcd.url, "router-after-wipe", 3, epochs)
            time.sleep(TTL + 1)  # what is missing would be believed by now
            load.go_on(1)
            assert discovery_up() == {None, "prefill-0", "decode-0", "decode-1"}
        assert router.epochs() == epochs
        assert "worker lost" not in router.process.text()
        router.idle(20)


def test_three_nodes_lose_their_leader():
    """Real daemons on three nodes, under load: the leader is killed, then the next one is stopped. Nobody is lost, everybody is registered and
    watching again, under the same epochs, and a router that comes after each loss sees them all."""
    with ByHand() as h:
        ports = [(free_port(), free_port()) for _ in range(3)]
        nodes = [h.add(EtcdNode(h.dir, i, ports)) for i in range(3)]
        url = "etcd://" + ",".join(f"127.0.0.1:{client}" for client, _ in ports)

        def leader(after=0):
            return next((n for n in nodes if n.popen.poll() is None and n.leads() > after), None)
        first, _ = wait_for("a leader", START_SECONDS, leader)
        h.worker("prefill", "prefill-0", url)
        h.worker("decode", "decode-0", url)
        router = h.router("router-1", url)
        router.ready(2)
        epochs = router.epochs()

        def all_up():
            return router.metrics().values("kvasir_discovery_up", "worker", backend="etcd") == {None, "prefill-0", "decode-0"}

        def lost(node, how, name, load):
            term = node.leads()
            node.kill() if how == signal.SIGKILL else node.signal(how)
            others = [n for n in nodes if n is not node]
            new, took = wait_for("another node leads", 60 * SLOW, lambda: next((n for n in others if n.leads() > term), None))
            print(f"        {how.name}: another node leads after {took:.2f} s")
            load.go_on(1)
            _, took = wait_for("all are registered and watching", 60 * SLOW, all_up)
            print(f"        all are registered and watching after {took:.2f} s more")
            second_router_sees(h, url, name, 2, epochs)
            return new
        with Load(router, threads=2) as load:
            load.go_on(1)
            second = lost(first, signal.SIGKILL, "router-after-kill", load)
            first.start()
            wait_for("it has joined again", 60 * SLOW, lambda: "leader" in first.status())
            lost(second, signal.SIGSTOP, "router-after-stop", load)
            time.sleep(TTL + 1)  # whose lease was not renewed by now would be gone
            load.go_on(1)
            second.signal(signal.SIGCONT)
        assert router.epochs() == epochs and "worker lost" not in router.process.text()
        assert all_up()
        router.idle(20)


def test_a_worker_that_is_cut_off_from_etcd_serves_on():
    """Its key vanishes; the stream to it lives, and that is what counts. When etcd is back for it, it is the same member."""
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))
        door = Door(etcd.port)
        h.worker("prefill", "prefill-0", etcd.url)
        h.worker("decode", "decode-0", f"etcd://127.0.0.1:{door.port}")
        router = h.router("router-1", etcd.url)
        router.ready(2)
        epochs = router.epochs()
        with Load(router, threads=2) as load:
            door.shut()
            wait_for("etcd has dropped it", 60 * SLOW, lambda: "gone from etcd but answers" in router.process.text())
            load.go_on(2)
            blind = h.router("router-blind", etcd.url)
            blind.ready(1, linked=False)
            assert set(blind.epochs()) == {"prefill-0"}
            door.open = True
            second_router_sees(h, etcd.url, "router-after", 2, epochs)
            load.go_on(1)
        assert router.epochs() == epochs and "worker lost" not in router.process.text()
        check(router)


def put(etcd, key, value):
    body = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
    urllib.request.urlopen(f"http://127.0.0.1:{etcd.port}/v3/kv/put", json.dumps(body).encode(), timeout=10).read()


def test_a_key_that_was_overwritten():
    """By hand, with what is no card: the worker puts its card again, and a router that starts afterwards finds it."""
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))
        h.worker("prefill", "prefill-0", etcd.url)
        h.worker("decode", "decode-0", etcd.url)
        router = h.router("router-1", etcd.url)
        router.ready(2)
        epochs = router.epochs()
        put(etcd, b"/kvasir/v1/default/members/decode-0", b"nothing that a member would write")
        second_router_sees(h, etcd.url, "router-2", 2, epochs)
        assert router.epochs() == epochs and "worker lost" not in router.process.text()
        check(router)


def test_up_says_when_its_names_are_taken():
    """Two clusters of kvasir up on one etcd: the second would take the first one's names. Here somebody else holds one of them."""
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))
        wait_for("etcd answers", 20 * SLOW, lambda: run(["kvasir", "doctor", "--discovery", etcd.url]).returncode == 0, 0.3)
        put(etcd, b"/kvasir/v1/default/members/decode-0", b"another cluster's")
        for cluster, taken in (("default", True), ("b", False)):
            with Cluster(STORIES, *SHAPE, "--discovery", f"etcd://127.0.0.1:1,{etcd.url[7:]}", "--cluster", cluster) as c:  # the first one is dead
                with open(os.path.join(c.dir, "up.err")) as f:
                    said = f.read()
                assert ('cluster "default" in this etcd has a decode-0 already' in said) == taken, said
                assert c.complete(row()["prompt_ids"], 3).status == 200


def test_leaving_is_seen_at_once():
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))
        h.worker("prefill", "prefill-0", etcd.url)
        decode = h.worker("decode", "decode-0", etcd.url)
        router = h.router("router-1", etcd.url)
        router.ready(2)
        decode.signal(signal.SIGTERM)
        _, took = wait_for("it is gone", TTL / 2 * SLOW, lambda: set(router.epochs()) == {"prefill-0"})
        other = h.router("router-2", etcd.url)  # no stream to it ever: etcd itself has forgotten it
        other.ready(1, linked=False)
        print(f"        gone after {took:.2f} s")
        h.worker("decode", "decode-1", etcd.url)
        router.ready(2)
        check(router)


def test_two_daemons_of_one_name():
    """The newer one has the name; the older one says so and serves nobody new."""
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))
        h.worker("prefill", "prefill-0", etcd.url)
        old = h.worker("decode", "decode-0", etcd.url)
        router = h.router("router-1", etcd.url)
        router.ready(2)
        epoch = router.epochs()["decode-0"]
        new = h.add(Process(h.dir, "decode-0-again", old.args))
        wait_for("the new one has the name", 60 * SLOW, lambda: router.epochs().get("decode-0") not in (None, epoch))
        wait_for("the old one says so", 30 * SLOW, lambda: "another process is registered under this name" in old.text())
        wait_for("the new one is linked", 30 * SLOW, lambda: "peer linked" in new.text())
        wait_for("and the router knows", 30 * SLOW,
                 lambda: router.complete(row()["prompt_ids"], 4, "remote").placement()["mode"] == "remote", 0.1)
        check(router)


def test_what_cannot_start_says_why():
    r = run(["kvasir-router", "--listen", "127.0.0.1:0", "--discovery", "etcd://nonsense"])
    assert r.returncode != 0 and "etcd://HOST:PORT" in r.stderr, r.stderr
    r = run(["kvasir-router", "--listen", "127.0.0.1:0", "--discovery", "http://127.0.0.1:1"])
    assert r.returncode != 0 and "etcd://HOST:PORT" in r.stderr, r.stderr
    r = run(["kvasir-router", "--listen", "127.0.0.1:0", "--control", "tcp://127.0.0.1:0", "--discovery", "tcp://127.0.0.1:1"])
    assert r.returncode != 0 and "give --control alone" in r.stderr, r.stderr
    for daemon in (["kvasir-router"], ["kvasir-decode-worker", "--model", STORIES]):  # it stands in keys: a/b would lie inside a
        r = run([*daemon, "--discovery", "etcd://127.0.0.1:1", "--cluster", "a/b"])
        assert r.returncode != 0 and "--cluster: 'a/b' is not a name" in r.stderr, r.stderr
    open_to_all = ["kvasir-router", "--listen", "127.0.0.1:0", "--control", "tcp://0.0.0.0:0", "--discovery", "etcd://127.0.0.1:1"]
    r = run(open_to_all)
    assert r.returncode != 0 and "--auth-file FILE" in r.stderr, r.stderr
    r = run(open_to_all, env=KEY)
    assert r.returncode != 0 and "--advertise HOST" in r.stderr, r.stderr
    r = run(["kvasir", "up", "--model", need(STORIES, "stories260K"), "--listen", "127.0.0.1:0", "--etcd", "--discovery", "etcd://127.0.0.1:1"])
    assert r.returncode != 0 and "--etcd" in r.stderr, r.stderr
    r = run(["kvasir", "up", "--model", STORIES, "--listen", "127.0.0.1:0", "--etcd"], env={"PATH": "/nonexistent"})
    assert r.returncode != 0 and "etcd-server" in r.stderr, r.stderr


def test_doctor_of_an_etcd_with_authentication():
    """Without a user it says what is missing, with a wrong password whose fault it is, and with the right one it looks as the daemons do."""
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))

        def call(path, body):
            c = http.client.HTTPConnection("127.0.0.1", etcd.port, timeout=10)
            with contextlib.closing(c), contextlib.suppress(OSError):
                c.request("POST", path, json.dumps(body))
                return c.getresponse().status == 200
        wait_for("etcd serves", START_SECONDS, lambda: call("/v3/auth/user/add", {"name": "root", "password": "right"}))
        for path, body in (("role/add", {"name": "root"}), ("user/grant", {"user": "root", "role": "root"}), ("enable", {})):
            assert call("/v3/auth/" + path, body), path

        def doctor(**env):
            r = run(["kvasir", "doctor", "--discovery", etcd.url], env=env)
            return r.returncode, r.stdout
        code, text = doctor()
        assert code == 0 and "refuses a read" in text and "KVASIR_ETCD_USER" in text, text
        code, text = doctor(KVASIR_ETCD_USER="root", KVASIR_ETCD_PASSWORD="wrong")
        assert code == 1 and 'refuses user "root"' in text and "a read takes" not in text, text
        code, text = doctor(KVASIR_ETCD_USER="root", KVASIR_ETCD_PASSWORD="right")
        assert code == 0 and '0 members of cluster "default"' in text and "refuses" not in text and "warning" not in text.replace("leases need", ""), text


def test_a_daemon_without_a_name_is_role_host_pid():
    with ByHand() as h:
        etcd = h.add(Etcd(h.dir))

        def start(program, role, *more):
            return h.add(Process(h.dir, role, [os.path.join(BIN, program), *([] if program != "kvasir" else ["worker"]), "--discovery", etcd.url, *more]))
        worker = ["--model", STORIES, "--model-name", "m", "--kv-memory", "16M", *SHAPE]
        router = start("kvasir-router", "router", "--listen", "127.0.0.1:0")
        workers = [start("kvasir-prefill-worker", "prefill", *worker), start("kvasir-decode-worker", "decode", *worker), start("kvasir", "both", *worker)]
        face = Router(router)
        face.ready(3, linked=False)
        host = socket.gethostname()[:31]
        assert set(face.epochs()) == {f"{p.name}-{host}-{p.popen.pid}" for p in workers}, face.epochs()
        assert face.status()["router"]["id"] == f"router-{host}-{router.popen.pid}"


def ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True, timeout=30)


@contextlib.contextmanager
def two_hosts():
    """Two network namespaces with one wire between them: 10.213.77.1 and .2."""
    names = [f"kvs-{os.getpid()}-{i}" for i in (1, 2)]
    if not shutil.which("ip") or os.geteuid() != 0 or ip("netns", "add", names[0]).returncode != 0:
        raise Skip("network namespaces need the program ip and the rights to make them")
    try:
        assert ip("netns", "add", names[1]).returncode == 0
        if ip("link", "add", "kvs0", "netns", names[0], "type", "veth", "peer", "name", "kvs0", "netns", names[1]).returncode != 0:
            raise Skip("veth pairs cannot be made here")
        for i, name in enumerate(names):
            for args in (["addr", "add", f"10.213.77.{i + 1}/24", "dev", "kvs0"], ["link", "set", "kvs0", "up"], ["link", "set", "lo", "up"]):
                r = ip("-n", name, *args)
                assert r.returncode == 0, r.stderr
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            ip("netns", "del", name)


def test_two_hosts():
    """As on two machines: etcd, router and prefill worker here, decode worker there; pages travel by TCP."""
    with ByHand() as h, two_hosts() as (here, there):
        etcd = h.add(Etcd(h.dir, "10.213.77.1", here))
        open_to_all = ["--listen", "0.0.0.0:0"]
        wire = {"UCX_NET_DEVICES": "kvs0", **KEY}  # pages stay on loopback unless told otherwise
        for role, prefix, address in (("prefill", here, "10.213.77.1"), ("decode", there, "10.213.77.2")):
            h.worker(role, f"{role}-0", etcd.url, "--advertise", address, "--transport", "tcp", *open_to_all, prefix=prefix, env=wire, control="tcp://0.0.0.0:0")
        router = h.add(Process(h.dir, "router-1", [os.path.join(BIN, "kvasir-router"), "--listen", "10.213.77.1:8080", "--control",
                                                   "tcp://10.213.77.1:0", "--discovery", etcd.url], here, KEY))

        def ask(path, body=None):
            data = ["-d", json.dumps(body), "-H", "Content-Type: application/json"] if body else []
            r = subprocess.run(here + ["curl", "-s", "-i", "--noproxy", "*", "--max-time", "60", *data, f"http://10.213.77.1:8080{path}"],
                               capture_output=True, timeout=90)
            return r.stdout.decode()

        def linked():
            text = ask("/kvasir/status").split("\r\n\r\n", 1)[-1]
            with contextlib.suppress(ValueError):
                return [w for w in json.loads(text)["workers"] if w["role"] == "decode" and w["peers"]]
        (decode,), took = wait_for("the two hosts are linked", START_SECONDS, linked, 0.2)
        print(f"        linked after {took:.2f} s by {decode['peers'][0]['transport']}")
        assert router.popen.poll() is None
        answer = ask("/v1/completions", {"model": "m", "prompt": row()["prompt_ids"], "max_tokens": 24, "temperature": 0, "return_token_ids": True,
                                         "kvasir": {"placement": "remote", "logits": True}})
        head, body = answer.split("\r\n\r\n", 1)
        assert "mode=remote" in head and "transport=tcp" in head, head
        choice = json.loads(body)["choices"][0]
        same_as(list(zip(choice["token_ids"], choice["kvasir"]["logits"])), wanted(24), "between two hosts")


if __name__ == "__main__":
    main()
