# limits_test.py - daemons that run out of descriptors: what runs goes on, what is new is refused or waits, nothing spins or ends, and all is
# well again when there are descriptors. The limit is set on the living process, just above what it has open.
# SPDX-License-Identifier: Apache-2.0
import resource
import threading

from kvasir_cluster import *

SHAPE = ["--context", 512, "--kv-type", "f32", "--block-tokens", 16, "--group-layers", 1, "--chunk-tokens", 32]
SLOWLY = {"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:10@1+"}


def row():
    need(STORIES, "stories260K")
    return golden()[11]


def want(n):
    return generate_alone(STORIES, row()["prompt_ids"], n, "--context", "512", "--kv-type", "f32")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def limit(pid, n):
    """Room for n more descriptors than are open; None: as many as before."""
    old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    soft = old[1] if n is None else descriptors(pid) + n
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, old[1]))


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Running(threading.Thread):
    def __init__(self, c, n):
        super().__init__(daemon=True)
        self.c, self.n, self.rows, self.failure = c, n, [], None
        self.start()

    def run(self):
        try:
            s = self.c.stream("/v1/completions", {"prompt": row()["prompt_ids"], "max_tokens": self.n, "return_token_ids": True, "kvasir": {"logits": True}})
            for event in s.events():
                choice = event["choices"][0]
                self.rows += list(zip(choice["token_ids"], choice["kvasir"]["logits"]))
            assert s.done
            s.close()
        except BaseException as e:
            self.failure = e


def test_a_router_without_descriptors():
    n = 150
    expected = want(n)
    with Cluster(STORIES, *SHAPE, env=SLOWLY) as c:
        pid = c.pid("router")
        running = [Running(c, n) for _ in range(6)]
        wait_for("all run", REQUEST_SECONDS, lambda: all(len(r.rows) > 3 for r in running))
        limit(pid, 5)
        crowd = []
        for _ in range(80):
            s = socket.create_connection((c.host, c.port), timeout=10)  # the kernel takes them; the router cannot
            s.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            crowd.append(s)
        spent = cpu_seconds(pid)
        time.sleep(2)
        spent = cpu_seconds(pid) - spent
        assert not any(r.failure for r in running), [r.failure for r in running]
        for r in running:
            r.join(REQUEST_SECONDS)
            assert r.failure is None, r.failure
            same_as(r.rows, expected, "beside a crowd")
        print(f"        six streams whole beside 80 connections; the router used {spent:.2f} s of CPU in 2 s")
        assert spent < 1.5, "it spins"
        for s in crowd:
            s.close()
        limit(pid, None)
        _, took = wait_for("requests are taken again", 30 * SLOW, lambda: c.complete(row()["prompt_ids"], 3, "local").status == 200)
        print(f"        served again after {took:.2f} s")
        assert c.pid("router") == pid
        c.idle(20)


def test_a_decode_worker_without_descriptors():
    """Its prefill worker is started anew, and it cannot open a link to it: it computes prompts itself. With descriptors the link comes."""
    with Cluster(STORIES, *SHAPE) as c:
        pid, old = c.pid("decode-0"), c.pid("prefill-0")
        same_as(rows_of(c.complete(row()["prompt_ids"], 8, "remote")), want(8), "before")
        c.kill("prefill-0")
        wait_for("the old life is forgotten", 30 * SLOW, lambda: "peer lost" in c.log("decode-0"))
        limit(pid, 0)

        def reborn():
            with contextlib.suppress(FileNotFoundError, ValueError):
                return c.pid("prefill-0") != old
        wait_for("prefill-0 is back", 30 * SLOW, reborn)
        for _ in range(10):
            answer = c.complete(row()["prompt_ids"], 8)
            same_as(rows_of(answer), want(8), "without a link")
            time.sleep(0.2)
        assert c.pid("decode-0") == pid and alive(pid), "it did not survive"
        print(f"        {answer.placement()['mode']} meanwhile")
        limit(pid, None)

        def linked():
            answer = c.complete(row()["prompt_ids"], 8, "remote")
            same_as(rows_of(answer), want(8), "afterwards")
            return answer.placement()["mode"] == "remote"
        _, took = wait_for("remote prefill works again", 60 * SLOW, linked, 0.2)
        print(f"        linked again after {took:.2f} s")
        assert c.pid("decode-0") == pid
        c.idle(20)


def started_with(soft, hard, args, said):
    """A daemon that was given these limits: the limit that it runs with, and its log once it has said so much."""
    def limited():
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with tempfile.TemporaryFile("w+") as log:
        p = subprocess.Popen([os.path.join(BIN, args[0]), *args[1:]], stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=limited)
        try:
            def text():
                log.seek(0)
                seen = log.read()
                return seen if said in seen else None
            seen, _ = wait_for(f"{args[0]}: {said}", START_SECONDS, text)
            return resource.prlimit(p.pid, resource.RLIMIT_NOFILE), seen
        finally:
            p.send_signal(signal.SIGINT)
            assert p.wait(20 * SLOW) == 0


def test_limits_are_raised_and_checked_at_start():
    router = ["kvasir-router", "--listen", "127.0.0.1:0", "--control", "tcp://127.0.0.1:0", "--connections"]
    worker = ["kvasir-decode-worker", "--listen", "127.0.0.1:0", "--model", need(STORIES, "stories260K"), "--discovery", "tcp://127.0.0.1:1"]
    few = "descriptors may run out"
    got, log = started_with(256, 1024, router + ["128"], "router listening")
    assert got == (1024, 1024) and few not in log, (got, log)
    got, log = started_with(256, 1024, router + ["2048"], "router listening")
    assert got == (1024, 1024) and few in log and "have=1024 needed=2880" in log and "lower --connections" in log, (got, log)
    got, log = started_with(256, 1024, worker, "ready")
    assert got == (1024, 1024) and few not in log, (got, log)
    got, log = started_with(256, 512, worker, "ready")
    assert got == (512, 512) and few in log and "LimitNOFILE" in log, (got, log)


def test_a_burst_beyond_the_connections():
    """Who finds no place is told so; what runs goes on; when they have left, others are served, and the router can still end."""
    expected = want(60)
    with Cluster(STORIES, *SHAPE, env={**SLOWLY, "KVASIR_ROUTER_CONNECTIONS": "64"}) as c:
        for _ in range(3):
            running = Running(c, 60)
            wait_for("it runs", REQUEST_SECONDS, lambda: running.rows, 0.005)
            guests = []
            for _ in range(300):
                s = socket.create_connection((c.host, c.port), timeout=10 * SLOW)
                s.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                guests.append(s)
            said = [s.recv(100)[:12] for s in guests]
            assert set(said) <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}, set(said)
            print(f"        {said.count(b'HTTP/1.1 200')} served, {said.count(b'HTTP/1.1 503')} told that there is no place")
            assert b"HTTP/1.1 200" in said
            for s in guests:
                s.close()
            wait_for("others are served again", 10 * SLOW, lambda: c.get("/health/live").status == 200)
            running.join(REQUEST_SECONDS)
            assert running.failure is None, running.failure
            same_as(running.rows, expected, "what ran beside the burst")
        c.idle(20)


def test_idle_connections_leave_room():
    """However many a stranger keeps open after an answer: there is room for others."""
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE, env={"KVASIR_ROUTER_CONNECTIONS": "64"}) as c:
        kept = []
        for _ in range(200):
            s = socket.create_connection((c.host, c.port), timeout=10 * SLOW)
            s.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            said = s.recv(1000)
            assert said.startswith(b"HTTP/1.1 200"), said
            kept.append((s, b"Connection: close" not in said))
        assert 32 <= sum(stays for _, stays in kept) <= 57, "connections that stay open"
        assert c.complete([1, 403], 3).status == 200
        assert run(["kvasir", "status", "--url", c.url]).returncode == 0
        for s, _ in kept:
            s.close()


def test_a_worker_that_has_read_everything_is_not_thought_busy():
    """Load is told four times a second, and once more as soon as nothing is left to read: the next prompt finds no queue in the router's books."""
    need(STORIES, "stories260K")
    ids = [3 + i % 400 for i in range(384)]
    with Cluster(STORIES, "--context", 512, "--chunk-tokens", 128, env={"KVASIR_FAILPOINTS_SET": "device.layer=delay:12@1+"}) as c:
        queues = []
        for i in range(12):
            queues.append(float(c.complete(ids, 1, "local").predicted()["queue_ms"]))
    print("        predicted queues, ms: " + " ".join(f"{q:.0f}" for q in queues))
    late = sum(q > 0 for q in queues[2:])  # the first ones measure how fast the worker is
    assert late <= 4, f"{late} of 10 prompts saw a queue in front of an idle worker"


def test_a_worker_without_a_router_rests():
    """Its last report told of a prompt, then the router is gone: nobody is left to be told that there is nothing to read."""
    need(STORIES, "stories260K")

    def asks():
        try:
            c.complete([3 + i % 400 for i in range(400)], 1, "local")
        except OSError:
            pass  # its router is killed

    def rests():
        spent = cpu_seconds(pid)
        time.sleep(1)
        return cpu_seconds(pid) - spent < 0.5
    with Cluster(STORIES, "--context", 512, "--chunk-tokens", 64, "--no-restart", env={"KVASIR_FAILPOINTS_SET": "device.layer=delay:60@1+"}) as c:
        pid = c.pid("decode-0")
        threading.Thread(target=asks, daemon=True).start()
        wait_for("a report tells of it", REQUEST_SECONDS, lambda: any(w["id"] == "decode-0" and w["prefill_left"] > 0 for w in c.get("/kvasir/status").json()["workers"]))
        c.kill("router")
        wait_for("the worker rests", 30 * SLOW, rests)


if __name__ == "__main__":
    main()
