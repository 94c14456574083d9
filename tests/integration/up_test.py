# up_test.py - `kvasir up` as a parent: it starts, watches, restarts and ends its daemons, and says in one line why it cannot.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *


def model():
    return need(STORIES, "stories260K")


def refuse(args, *words, env=None):
    start = time.monotonic()
    r = run(["kvasir", "up", "--listen", "127.0.0.1:0", *args], 60, env)
    assert r.returncode not in (0, None), f"{args}: exit code {r.returncode}"
    lines = [line for line in r.stderr.splitlines() if "warning" not in line]
    assert len(lines) == 1 and lines[0].startswith("kvasir: error: "), f"{args}: {r.stderr!r}"
    for word in words:
        assert word in lines[0], f"{args}: {lines[0]!r} does not say {word!r}"
    assert "ready" not in r.stdout
    return time.monotonic() - start


def test_what_cannot_start_says_why():
    with tempfile.TemporaryDirectory() as d, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        broken = os.path.join(d, "broken.gguf")
        with open(broken, "wb") as f:
            f.write(open(model(), "rb").read(5000))
        refuse(["--model", "/nonexistent.gguf"], "nonexistent.gguf", "smollm2, gemma3")
        refuse(["--model", model(), "--auth-file", "/nonexistent.key"], "nonexistent.key", "No such file")
        refuse(["--model", broken])
        text = os.path.join(d, "text.gguf")
        with open(text, "w") as f:
            f.write("no model at all")
        refuse(["--model", text], "text.gguf", "not a GGUF file")
        refuse(["--model", d])
        refuse(["--model", model(), "--listen", f"127.0.0.1:{port}"], str(port), "in use")
        refuse(["--model", model(), "--listen", "nonsense"], "HOST:PORT")
        refuse(["--model", model(), "--nonsense", "1"], "nonsense")
        refuse(["--model", model(), "--transport", "pigeon"], "pigeon")
        refuse(["--model", model(), "--kv-type", "f8"], "f8")
        refuse(["--model", model(), "--block-tokens", "7"], "7")
        refuse(["--model", model(), "--kv-memory", "lots"], "lots")
        refuse(["--model", model(), "--kv-memory", "1"], "did not start")
        refuse(["--model", model(), "--kv-memory", "900000G"], "--kv-memory 900000G for each of 2 workers", "give at most")
        refuse(["--model", model(), "--chunk-tokens", "20000"], "20000 is out of range", "8192")
        refuse(["--model", model(), "--decode", "0"], "decode")
        refuse(["--model", model(), "stray"], "stray")


def test_a_worker_takes_no_more_memory_than_there_is():
    r = run(["kvasir-decode-worker", "--model", model(), "--discovery", "ipc:///nonexistent/router.sock", "--kv-memory", "900000G"])
    assert r.returncode not in (0, -6, -11) and "more than the" in r.stderr and len(r.stderr.splitlines()) == 1, r.stderr
    r = run(["kvasir", "generate", "--model", model()])
    assert r.returncode not in (0, -6, -11) and "give --prompt TEXT or --ids" in r.stderr, r.stderr


def says(args, *words):
    """The program keeps waiting, and tells for what; then it ends when asked to."""
    with tempfile.TemporaryFile("w+") as err:
        p = subprocess.Popen([os.path.join(BIN, args[0]), *args[1:]], stderr=err, stdout=subprocess.DEVNULL)

        def told():
            err.seek(0)
            text = err.read()
            return all(word in text for word in words)

        try:
            wait_for(f"a line that says {words}", 50 * SLOW, told)
        finally:
            p.send_signal(signal.SIGINT)
            assert p.wait(20 * SLOW) == 0


def test_who_waits_says_for_what():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, not listening: nobody answers there
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        says(["kvasir", "up", "--listen", "127.0.0.1:0", "--model", model(), "--discovery", f"etcd://{at}"], "of 2 workers are ready",
             f"doctor --discovery etcd://{at}")
        says(["kvasir-decode-worker", "--listen", "127.0.0.1:0", "--model", model(), "--discovery", f"tcp://{at}"], "no router answers")


def test_run_dir_in_use_is_refused():
    with Cluster(model()) as c:
        refuse(["--model", model(), "--run-dir", c.run_dir], "in use")
        assert c.get("/health/ready").status == 200


def test_term_and_interrupt_end_everything():
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        c = Cluster(model())
        try:
            pids = [c.pid(name) for name in c.names]
            start = time.monotonic()
            c.up.send_signal(sig)
            assert c.up.wait(20 * SLOW) == 0
            print(f"        {sig.name}: all ended after {time.monotonic() - start:.2f} s")
            assert not [p for p in pids if alive(p)]
            assert not [f for f in os.listdir(c.run_dir) if f.endswith((".pid", ".sock"))], os.listdir(c.run_dir)
        finally:
            c.kill_up()


def test_a_worker_that_loads_can_be_stopped():
    """A large model takes minutes to load; nobody waits for that to end a worker."""
    for sig in (signal.SIGTERM, signal.SIGINT):
        p = subprocess.Popen([os.path.join(BIN, "kvasir-decode-worker"), "--model", model(), "--discovery", "tcp://127.0.0.1:1"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=die_with_parent,
                             env={**os.environ, "KVASIR_FAILPOINTS_SET": "worker.load=delay:60000"})
        try:
            while "worker.load" not in (line := p.stderr.readline().decode()):
                assert line, "it has ended"
            start = time.monotonic()
            p.send_signal(sig)
            assert p.wait(20 * SLOW) == 0
            print(f"        {sig.name}: ended after {time.monotonic() - start:.2f} s")
            assert "while the model was being loaded" in p.stderr.read().decode()
        finally:
            p.kill()
            p.stderr.close()


def test_all_end_when_the_router_has_drained():
    """Who asks the router itself to end, not its parent, means the cluster: a stream that runs is finished, then the rest goes, with code 0."""
    ids = golden()[11]["prompt_ids"]
    want = [row[0] for row in generate_alone(model(), ids, 60, "--context", "512", "--kv-type", "f32")]
    c = Cluster(model(), "--context", 512, "--kv-type", "f32", env={"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:10@1+"})
    try:
        pids = [c.pid(name) for name in c.names]
        s = c.stream("/v1/completions", {"prompt": ids, "max_tokens": 60, "return_token_ids": True})
        events = s.events()
        got = next(events)["choices"][0]["token_ids"]
        c.kill("router", signal.SIGTERM)
        got += [i for event in events for i in event["choices"][0]["token_ids"]]
        assert s.done and got == want, f"{len(got)} of {len(want)} tokens"
        s.close()
        assert c.up.wait(60 * SLOW) == 0
        assert "the router has drained" in c.stderr(), c.stderr()
        assert not [p for p in pids if alive(p)]
        c.check_logs()
    finally:
        c.kill_up()


def test_nothing_outlives_a_killed_parent():
    c = Cluster(model())
    try:
        pids = [c.pid(name) for name in c.names]
        c.up.kill()
        c.up.wait(10)
        wait_for("all daemons are gone", 5 * SLOW, lambda: not [p for p in pids if alive(p)])
    finally:
        c.kill_up()


def test_stopped_daemon_is_ended_too():
    c = Cluster(model())
    try:
        pids = [c.pid(name) for name in c.names]
        c.kill("decode-0", signal.SIGSTOP)
        c.up.send_signal(signal.SIGTERM)
        assert c.up.wait(20 * SLOW) == 0
        assert not [p for p in pids if alive(p)]
    finally:
        c.kill_up()


def test_dead_child_is_reaped_and_started_again():
    with Cluster(model()) as c:
        for name in ("prefill-0", "decode-0", "router"):
            old = c.kill(name)
            _, took = wait_for(f"{name} is reaped", 5 * SLOW, lambda: not os.path.exists(f"/proc/{old}"), 0.005)

            def again():
                try:
                    return c.pid(name) != old
                except (FileNotFoundError, ValueError):
                    return False
            wait_for(f"{name} is started again", 10 * SLOW, again)
            print(f"        {name}: reaped after {took * 1000:.0f} ms")

            def answers():
                try:
                    return c.complete([1, 403], 3, "remote").status == 200
                except OSError:
                    return False
            wait_for("requests work again", 30 * SLOW, answers, 0.2)


def test_no_restart_leaves_it_dead():
    with Cluster(model(), "--no-restart") as c:
        old = c.kill("prefill-0")
        wait_for("reaped", 5 * SLOW, lambda: not os.path.exists(f"/proc/{old}"))
        time.sleep(1)
        assert not os.path.exists(os.path.join(c.run_dir, "prefill-0.pid"))
        assert c.complete([1, 403], 3).status == 200, "the decode worker serves alone"


def test_long_run_dir_works():
    base = tempfile.mkdtemp(prefix="kvasir-it-")
    deep = os.path.join(base, "d" * 100, "e" * 60)
    try:
        up = subprocess.Popen([os.path.join(BIN, "kvasir"), "up", "--model", model(), "--listen", "127.0.0.1:0", "--run-dir", deep],
                              stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        try:
            assert said_until_ready(up, START_SECONDS, lambda: "no log")["run-dir"] == os.path.realpath(deep)
        finally:
            up.terminate()
            assert up.wait(20 * SLOW) == 0
            up.stdout.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def test_larger_context_is_a_warning():
    with Cluster(model(), "--context", "512") as c:
        assert "warning" in c.stderr() and "512" in c.stderr()
        assert c.complete([1] * 300, 3).status == 200
    with Cluster(model()) as c:
        assert "warning" not in c.stderr()
        assert c.complete([1] * 300, 3).status == 400


def test_placement_and_threads_are_what_was_said():
    """--placement decides where no request says otherwise (a short prompt is read by the decode worker if left to the router); the team of a
    worker has as many threads as asked, and the numbers are the same."""
    ids = golden()[11]["prompt_ids"]
    want = generate_alone(model(), ids, 20, "--context", "512", "--kv-type", "f32", "--threads", "1")
    tasks = {}
    for threads, placement in ((1, "auto"), (3, "local"), (2, "remote")):
        with Cluster(model(), "--context", 512, "--kv-type", "f32", "--placement", placement, "--threads", threads) as c:
            answer = c.complete(ids, 20)
            same_as(rows_of(answer), want, f"{threads} threads, {placement}")
            assert answer.placement()["mode"] == ("local" if placement == "auto" else placement), answer.placement()
            other = "remote" if placement == "local" else "local"
            answer = c.complete(ids, 20, other)
            same_as(rows_of(answer), want, f"{threads} threads, {other}")
            assert answer.placement()["mode"] == other, "a request that says so is not placed there"
            of = f"/proc/{c.pid('decode-0')}/task"
            tasks[threads] = sum(open(f"{of}/{t}/comm").read() == "kvs-engine\n" for t in os.listdir(of))
            c.idle()
    assert tasks == {1: 0, 2: 1, 3: 2}, f"threads that compute beside the device thread: {tasks}"


def test_status_shows_the_cluster():
    with Cluster(model(), prefill=2) as c:
        wait_for("each worker has told its load", 5 * SLOW, lambda: all(w["pages"] and w["peers"] for w in c.status()["workers"]))
        r = run(["kvasir", "status", "--url", c.url, "--json"])
        assert r.returncode == 0, r.stderr
        workers = {w["id"]: w for w in json.loads(r.stdout)["workers"]}
        assert set(workers) == {"prefill-0", "prefill-1", "decode-0"}
        for name, w in workers.items():
            assert w["pid"] == c.pid(name) and int(w["epoch"], 16) != 0 and w["pages"]
        assert {p["id"]: p["transport"] for p in workers["decode-0"]["peers"]} == {"prefill-0": "cma", "prefill-1": "cma"}
        r = run(["kvasir", "status", "--url", c.url])
        assert r.returncode == 0 and "decode-0" in r.stdout and "prefill-1:cma" in r.stdout, r.stdout
    r = run(["kvasir", "status", "--url", c.url])
    assert r.returncode == 1 and "kvasir up" in r.stderr


if __name__ == "__main__":
    main()
