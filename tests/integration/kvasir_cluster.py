# kvasir_cluster.py - what the integration tests share: start a real cluster, ask it, read its metrics, end it; every wait has a deadline.
#
# A test is a script whose functions test_* run in order (run_tests). It finds the programs in $KVASIR_BIN (set by ctest) and skips with
# exit code 77 and a printed reason when its model is absent. Processes are ended by pid; nothing survives a test: the daemons die with
# `kvasir up`, and `kvasir up` is told to die with the test.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes
import http.client
import itertools
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
SHARED = os.path.join(SOURCE, "..", "shared")
BIN = os.environ.get("KVASIR_BIN", os.path.join(SOURCE, "build", "check", "bin"))
SLOW = float(os.environ.get("KVASIR_TEST_SLOW", "1"))  # sanitizers multiply every deadline
START_SECONDS = 60 * SLOW
REQUEST_SECONDS = 120 * SLOW

STORIES = os.path.join(SHARED, "models", "stories260K.gguf")
STORIES_GOLDEN = os.path.join(SHARED, "models", "stories260K.golden.jsonl")
# stories260K: 5 layers, 4 kv heads of 8 dims: elements of K and V of one token in one layer.
STORIES_LAYERS, STORIES_KV = 5, 4 * (8 + 8)


class Skip(Exception):
    pass


def need(path, what):
    if not os.path.exists(path):
        raise Skip(f"{what} is absent ({os.path.basename(path)})")
    return path


def fetched(variable, file, what):
    path = os.environ.get(variable)
    if not path:
        cache = os.environ.get("KVASIR_CACHE")
        if not cache:
            cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kvasir")
        path = os.path.join(cache, "models", file)
    return need(path, what)


def smollm2():
    return fetched("KVASIR_TEST_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf", "the sample model (kvasir model pull smollm2)")


def gemma3():
    return fetched("KVASIR_TEST_GEMMA3", "gemma-3-270m-q4_k_m.gguf", "the model (kvasir model pull gemma3)")


def golden(limit=None):
    with open(need(STORIES_GOLDEN, "the golden output of stories260K")) as f:
        rows = [json.loads(line) for line in f]
    return rows[:limit]


def continued(row, n=100):
    """The same text with its first n tokens in the prompt: a prompt of more than one block and of several chunks, the rest of the golden to come."""
    return {**row, "prompt": f"{row['prompt']} and {n} tokens more", "prompt_ids": row["prompt_ids"] + [o[0] for o in row["out"][:n]],
            "out": row["out"][n:], "n_out": row["n_out"] - n}


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


PATIENCE = 60 * SLOW  # what is awaited may take so long on a crowded machine, whatever was promised for a calm one


def wait_for(what, seconds, probe, pause=0.05):
    """probe() until it returns something true, which is returned with the time it took."""
    start, seconds = time.monotonic(), max(seconds, PATIENCE)
    while True:
        value = probe()
        if value:
            return value, time.monotonic() - start
        if time.monotonic() - start > seconds:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(pause)


_ports = set()


def free_port():
    """A port of 127.0.0.1 that is free and stays so: from below those that the kernel deals out, and none twice."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        low = int(f.read().split()[0])
    draw = random.SystemRandom()
    for _ in range(10000):
        port = draw.randrange(10000, low) if low > 12000 else 0
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            port = s.getsockname()[1]
            if port not in _ports:
                _ports.add(port)
                return port
    raise AssertionError("no free port")


def alive(pid):
    """Running, that is: there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def run(args, seconds=60, env=None, **more):
    return subprocess.run([os.path.join(BIN, args[0])] + args[1:], capture_output=True, text=True, timeout=seconds * SLOW,
                          env={**os.environ, **(env or {})}, **more)


def generate_alone(model, ids, n, *flags, seconds=120):
    """What `kvasir generate` says: a list of (id, logit)."""
    r = run(["kvasir", "generate", "--model", model, "--ids", ",".join(map(str, ids)), "-n", str(n), "--json", *flags], seconds)
    assert r.returncode == 0, r.stderr
    rows = [json.loads(line) for line in r.stdout.splitlines()]
    return [(row["id"], row["logit"]) for row in rows]


def said_until_ready(up, seconds, stderr):
    """The lines that kvasir up prints, as a dict, once the one that begins with "ready" is there."""
    deadline, text = time.monotonic() + seconds, b""
    while not re.search(rb"^ready .*\n", text, re.M):
        ready, _, _ = select.select([up.stdout], [], [], max(0, deadline - time.monotonic()))
        more = os.read(up.stdout.fileno(), 4096) if ready else b""
        if not more:
            raise AssertionError(f"kvasir up: {'ended' if ready else f'not ready within {seconds} s'}: {stderr().strip()}")
        text += more
    return dict(line.split(" ", 1) for line in text.decode().splitlines())


class Metrics:
    LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
    LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

    def __init__(self, text):
        self.samples = []
        for line in text.splitlines():
            m = None if line.startswith("#") else self.LINE.match(line)
            if m:
                self.samples.append((m.group(1), dict(self.LABEL.findall(m.group(2) or "")), float(m.group(3))))

    def sum(self, name, **labels):
        return sum(v for n, have, v in self.samples if n == name and all(have.get(k) == w for k, w in labels.items()))

    def get(self, name, **labels):
        found = [v for n, have, v in self.samples if n == name and all(have.get(k) == w for k, w in labels.items())]
        assert len(found) == 1, f"{name} {labels}: {len(found)} samples, not 1"
        return found[0]

    def values(self, name, key, **labels):
        return {have.get(key) for n, have, v in self.samples
                if n == name and v > 0 and all(have.get(k) == w for k, w in labels.items())}


PLACEMENT_KEYS = ("mode", "prefill", "decode", "cached", "bytes", "transport")


def placement_parts(headers):
    return dict(part.split("=", 1) for part in headers.get("x-kvasir-placement", "").split())


def placed(headers):
    """Where and how a prompt was read: the header's first keys, without what was predicted."""
    return {k: v for k, v in placement_parts(headers).items() if k in PLACEMENT_KEYS}


class Answer:
    """A non-streamed answer: status, headers (lower case), body."""

    def __init__(self, status, headers, body):
        self.status, self.body = status, body
        self.headers = {k.lower(): v for k, v in headers}

    def json(self):
        return json.loads(self.body)

    def placement(self):
        return placed(self.headers)

    def predicted(self):
        """The rest of the header: what was predicted, in milliseconds, and what came of it."""
        return {k: v for k, v in placement_parts(self.headers).items() if k not in PLACEMENT_KEYS}

    def choice(self):
        assert self.status == 200, f"HTTP {self.status}: {self.body[:500]}"
        return self.json()["choices"][0]


_salts = itertools.count()


def salted(body):
    """A fresh cache_salt, so that nothing is reused between requests; a test that wants reuse says cache_salt=NAME, or None for none."""
    body = dict(body)
    if body.setdefault("cache_salt", f"fresh-{os.getpid()}-{next(_salts)}") is None:
        del body["cache_salt"]
    return body


class Stream:
    """A streamed answer, read event by event; close() leaves as a client that goes away does."""

    def __init__(self, cluster, path, body, seconds):
        self.sock = socket.create_connection((cluster.host, cluster.port), timeout=seconds)
        data = json.dumps(salted(body)).encode()
        head = (f"POST {path} HTTP/1.1\r\nHost: {cluster.host}:{cluster.port}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\n\r\n")
        self.sock.sendall(head.encode() + data)
        self.response = http.client.HTTPResponse(self.sock)
        self.response.begin()
        self.status = self.response.status
        self.headers = {k.lower(): v for k, v in self.response.getheaders()}
        self.done = False

    def events(self):
        """Yields parsed data objects; ends after [DONE] or the end of the body."""
        while True:
            line = self.response.readline()
            if not line:
                return
            line = line.rstrip(b"\r\n")
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self.done = True
                return
            yield json.loads(data)

    def placement(self):
        return placed(self.headers)

    def close(self, reset=False):
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.response.close()
        self.sock.close()


class Cluster:
    def __init__(self, model, *flags, env=None, prefill=1, decode=1, seconds=START_SECONDS):
        if os.environ.get("KVASIR_TEST_ETCD") and not shutil.which("etcd"):
            raise Skip("the program etcd is not installed (package etcd-server)")
        self.dir = tempfile.mkdtemp(prefix="kvasir-it-")
        self.run_dir = os.path.join(self.dir, "run")
        self.names = ["router"] + [f"prefill-{i}" for i in range(prefill)] + [f"decode-{i}" for i in range(decode)]
        self.seen_pids = set()
        args = [os.path.join(BIN, "kvasir"), "up", "--model", model, "--model-name", "m", "--listen", "127.0.0.1:0",
                "--run-dir", self.run_dir, "--prefill", str(prefill), "--decode", str(decode), "--threads", "1", *map(str, flags)]
        if os.environ.get("KVASIR_TEST_ETCD"):  # any of these tests with discovery by etcd
            args.append("--etcd")
        self.err = open(os.path.join(self.dir, "up.err"), "w+")
        self.up = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=self.err, stdin=subprocess.DEVNULL,
                                   env={**os.environ, **(env or {})}, preexec_fn=die_with_parent)
        self.said = {}
        try:
            self._wait_ready(seconds)
        except BaseException:
            self.print_logs()
            self.kill_up()
            raise

    def _wait_ready(self, seconds):
        self.said = said_until_ready(self.up, seconds, self.stderr)
        self.url = self.said["ready"]
        self.host, port = self.url[len("http://"):].rsplit(":", 1)
        self.port = int(port)
        for name in self.names:
            self.seen_pids.add(self.pid(name))

    def stderr(self):
        self.err.flush()
        with open(os.path.join(self.dir, "up.err")) as f:
            return f.read()

    def pid(self, name):
        with open(os.path.join(self.run_dir, f"{name}.pid")) as f:
            pid = int(f.read())
        self.seen_pids.add(pid)
        return pid

    def kill(self, name, sig=signal.SIGKILL):
        pid = self.pid(name)
        os.kill(pid, sig)
        return pid

    def log(self, name):
        try:
            with open(os.path.join(self.run_dir, f"{name}.log"), errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def print_logs(self):
        print("--- kvasir up\n" + self.stderr()[-4000:])
        for name in self.names:
            print(f"--- {name}\n" + self.log(name)[-4000:])
        sys.stdout.flush()

    # HTTP
    def request(self, method, path, body=None, headers=None, seconds=REQUEST_SECONDS):
        c = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        try:
            if isinstance(body, dict) and path.startswith("/v1/"):
                body = salted(body)
            data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})} if data is not None else headers or {})
            r = c.getresponse()
            return Answer(r.status, r.getheaders(), r.read().decode("utf-8"))
        finally:
            c.close()

    def get(self, path, seconds=30):
        return self.request("GET", path, seconds=seconds)

    def complete(self, prompt, n, placement=None, seconds=REQUEST_SECONDS, **more):
        body = {"model": "m", "prompt": prompt, "max_tokens": n, "temperature": 0, "return_token_ids": True,
                "kvasir": {"logits": True, **({"placement": placement} if placement else {})}, **more}
        return self.request("POST", "/v1/completions", body, seconds=seconds)

    def chat(self, content, n=64, placement=None, **more):
        body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": n, "temperature": 0,
                "return_token_ids": True, "kvasir": {"logits": True, **({"placement": placement} if placement else {})}, **more}
        return self.request("POST", "/v1/chat/completions", body)

    def stream(self, path, body, seconds=REQUEST_SECONDS):
        return Stream(self, path, {"model": "m", "stream": True, "temperature": 0, **body}, seconds)

    def raw(self, data, seconds=10):
        """Bytes as they stand to the router's port; all that comes back until it closes or the time is up."""
        with socket.create_connection((self.host, self.port), timeout=seconds) as s:
            s.sendall(data)
            out = b""
            with contextlib.suppress(socket.timeout, ConnectionResetError):
                while chunk := s.recv(65536):
                    out += chunk
            return out

    def metrics_now(self):
        answer = self.get("/metrics")
        assert answer.status == 200
        return Metrics(answer.body)

    def metrics(self):
        """A page whose workers' parts are younger than this call: of reports that came half a second after it, as the status page tells, which
        itself is a tenth of a second old. A worker that hangs or has gone is not waited for."""
        start = time.monotonic()
        time.sleep(0.6)

        def told():
            waited = time.monotonic() - start
            late = [w for w in self.status()["workers"] if w["state"] == "ready" and w["load_age_ms"] / 1000 > waited - 0.4]
            return not late or waited > 3 * SLOW
        wait_for("reports of all workers", 5 * SLOW, told)
        return self.metrics_now()

    def status(self):
        return self.get("/kvasir/status").json()

    def idle(self, seconds=10):
        """Waits until no page is held or fenced anywhere; checks the page equation; says how long it took."""
        def settled():
            m = self.metrics_now()
            return m if m.sum("kvasir_kv_pages", state="held") == 0 and m.sum("kvasir_kv_pages", state="fenced") == 0 else None
        m, took = wait_for("held and fenced pages return to 0", seconds * SLOW, settled)
        self.check_pages(m)
        return took

    def check_pages(self, m):
        """free + cached + held + fenced is the same sum as ever, per worker and group."""
        totals = {}
        for name, labels, value in m.samples:
            if name == "kvasir_kv_pages" and "worker" in labels:
                key = (labels["worker"], labels["group"])
                totals[key] = totals.get(key, 0) + value
        assert totals, "no kvasir_kv_pages with a worker label"

        def known():  # the status page is drawn a little later than the metrics page
            expected = {(w["id"], str(g["group"])): g["total"] for w in self.status()["workers"] for g in w["pages"]}
            return expected if expected.keys() >= totals.keys() else None
        expected, _ = wait_for("the status page has every worker's pages", 5 * SLOW, known)
        for key, total in totals.items():
            assert total == expected[key], f"pages of {key}: {total} in all states, {expected[key]} in total"

    # end
    def stop(self):
        """SIGTERM to kvasir up; everything must be gone soon after, with exit code 0."""
        self.up.send_signal(signal.SIGTERM)
        try:
            code = self.up.wait(20 * SLOW)
            assert code == 0, f"kvasir up ended with {code}: {self.stderr()[-500:]}"
            left = [pid for pid in self.seen_pids if alive(pid)]
            assert not left, f"processes left running: {left}"
            self.check_logs()
        finally:
            self.kill_up()

    def kill_up(self):
        if self.up.poll() is None:
            self.up.kill()
            self.up.wait(10)
        self.up.stdout.close()
        self.err.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def check_logs(self):
        """No sanitizer spoke and no assertion failed, in any life of any daemon."""
        for name in self.names:
            log = self.log(name)
            found = re.search(r"(ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|assertion failed)", log)
            if found:
                print(f"--- {name}\n" + log[max(0, found.start() - 500):found.start() + 6000])
                raise AssertionError(f"{name}: {found.group(1)}")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.stop()
        else:
            self.print_logs()
            self.kill_up()


def same_as(got, want, what):
    """Two lists of (id, logit) are equal bit for bit (the logits have 9 digits: the whole float)."""
    for i, (a, b) in enumerate(zip(got, want)):
        assert a == b, f"{what}: token {i} is {a}, not {b}"
    assert len(got) == len(want), f"{what}: {len(got)} tokens, not {len(want)}"


def rows_of(answer):
    """(id, logit) of a completion's choice."""
    choice = answer.choice()
    return list(zip(choice["token_ids"], choice["kvasir"]["logits"]))


def run_tests(names=None):
    tests = [(n, f) for n, f in sys.modules["__main__"].__dict__.items() if n.startswith("test_") and (not names or n in names)]
    failed = skipped = 0
    for name, f in tests:
        start = time.monotonic()
        try:
            f()
            print(f"ok      {name} ({time.monotonic() - start:.1f} s)", flush=True)
        except Skip as e:
            skipped += 1
            print(f"skipped {name}: {e}", flush=True)
        except BaseException as e:
            failed += 1
            traceback.print_exc()
            print(f"FAILED  {name} ({time.monotonic() - start:.1f} s): {e}", flush=True)
            if isinstance(e, KeyboardInterrupt):
                break
    sys.exit(1 if failed else 77 if skipped and skipped == len(tests) else 0)


def main():
    run_tests(sys.argv[1:])
