# role_test.py - a running worker is told to be another: what it decodes moves with its pages, what it prefills comes to its end, and it serves in
# the new role under the same epoch with the same cache. Paths are asserted from counters, headers and the status page.
# SPDX-License-Identifier: Apache-2.0
import threading

from kvasir_cluster import *
from placement_test import Delta
from resume_test import Reader

SHAPE = ["--context", 512, "--kv-type", "f32", "--block-tokens", 16, "--group-layers", 1, "--chunk-tokens", 7]
LENGTH = 90


def slowly(ms):
    """So that streams last until all that is to happen to them has happened, however late a crowded machine does it."""
    return {"KVASIR_FAILPOINTS_SET": f"decode.after_token=delay:{ms}@1+"}


def bodies():
    need(STORIES, "stories260K")
    rows = golden()
    greedy = [{"prompt": rows[i]["prompt_ids"], "max_tokens": LENGTH, "ignore_eos": True} for i in (0, 2, 5, 11)]
    sampled = [{**b, "temperature": 0.9, "top_p": 0.95, "seed": 1000 + i} for i, b in enumerate(greedy)]
    return greedy + sampled[:3] + [{**sampled[3], "n": 3}]


def same(got, want, what):
    assert got["error"] is None and got["done"], f"{what}: {got['error']}"
    for i in want["rows"]:
        same_as(got["rows"].get(i, []), want["rows"][i], f"{what}, choice {i}")
    assert (got["text"], got["finish"]) == (want["text"], want["finish"]), what


def role(c, worker, name):
    said = run(["kvasir", "role", worker, name, "--url", c.url])
    assert said.returncode == 0, said.stderr


def of(c, worker):
    return {w["id"]: w for w in c.status()["workers"]}[worker]


def test_streams_move_when_roles_change_again_and_again():
    """Eight streams, one with three choices; the two decode workers take turns in being none. Nothing is lost, doubled or another."""
    asked = bodies()
    with Cluster(STORIES, *SHAPE, decode=2, env=slowly(12)) as c:
        want = [r.outcome() for r in [Reader(c, b) for b in asked]]
        epochs = {w["id"]: w["epoch"] for w in c.status()["workers"]}
        before = c.metrics()
        readers = [Reader(c, b) for b in asked]
        turns = 0
        while turns < 4 and all(r.is_alive() for r in readers):
            worker = f"decode-{turns % 2}"
            wait_for("all streams run", REQUEST_SECONDS, lambda: all(r.count() >= 2 for r in readers), 0.005)
            role(c, worker, "prefill")
            assert of(c, worker)["role"] == "prefill"
            role(c, worker, "decode")
            turns += 1
        for i, (r, w) in enumerate(zip(readers, want)):
            same(r.outcome(), w, f"stream {i}")
        d = Delta(before, c.metrics())
        moved, fetched = d("kvasir_moved_total"), d("kvasir_fetched_tokens_total")
        print(f"        {turns} turns: {moved:.0f} moves, {fetched:.0f} tokens fetched, {d('kvasir_prefill_tokens_total'):.0f} computed in chunks, "
              f"longest pause {max(r.pause() for r in readers):.2f} s")
        assert turns >= 2 and moved >= 4, "too little moved to show anything"
        assert fetched > 0 and d("kvasir_resumed_total") == 0
        assert {w["id"]: w["epoch"] for w in c.status()["workers"]} == epochs, "a role changes under the same epoch"
        c.idle(20)


def test_a_prefill_that_runs_comes_to_its_end():
    """The prefill worker is told to decode while it reads a prompt: that one stays remote, the next one cannot be."""
    row = golden()[11]
    env = {"KVASIR_FAILPOINTS_SET": "prefill.after_step=delay:100@1+"}
    with Cluster(STORIES, *SHAPE, env=env) as c:
        want = generate_alone(STORIES, row["prompt_ids"], 8, "--context", "512", "--kv-type", "f32")
        said = []
        asker = threading.Thread(target=lambda: said.append(c.complete(row["prompt_ids"], 8, "remote")), daemon=True)
        asker.start()
        wait_for("it reads", 20 * SLOW, lambda: "failpoint fired" in c.log("prefill-0"), 0.005)
        role(c, "prefill-0", "decode")
        asker.join(REQUEST_SECONDS)
        same_as(rows_of(said[0]), want, "during the change")
        assert said[0].placement()["mode"] == "remote" and said[0].placement()["prefill"] == "prefill-0", said[0].placement()
        assert c.metrics().sum("kvasir_prefill_fallbacks_total") == 0
        answer = c.complete(row["prompt_ids"], 8, "remote")
        same_as(rows_of(answer), want, "afterwards")
        assert answer.placement()["mode"] == "local", answer.placement()
        role(c, "prefill-0", "both")
        answer = c.complete(row["prompt_ids"], 8, "remote")
        same_as(rows_of(answer), want, "with both roles")
        assert answer.placement()["mode"] == "remote", answer.placement()
        c.idle(20)


def test_the_last_decode_worker():
    """Told to prefill with nobody to take its stream: it has worker.drain seconds, then an error; new requests wait for nobody. And back."""
    body = bodies()[0]
    env = {**slowly(120), "KVASIR_WORKER_DRAIN": "3"}
    with Cluster(STORIES, *SHAPE, env=env) as c:
        reader = Reader(c, body)
        wait_for("it runs", REQUEST_SECONDS, lambda: reader.count() >= 5, 0.005)
        role(c, "decode-0", "prefill")
        assert reader.is_alive() and not reader.error, "it may go on for a while"
        got = reader.outcome()
        assert got["error"] and got["error"]["code"] == "self_stopping" and not got["done"], got["error"]
        assert c.complete([1, 403], 3).status == 503
        role(c, "decode-0", "decode")
        want = generate_alone(STORIES, body["prompt"], 20, "--context", "512", "--kv-type", "f32")
        same_as(rows_of(c.complete(body["prompt"], 20)), want, "a decode worker again")
        c.idle(20)


def test_what_is_refused():
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE, decode=2, env=slowly(25)) as c:
        for args, words in ((["nobody", "prefill"], "nobody"), (["decode-0", "king"], "prefill, decode or both"), (["decode-0"], "prefill, decode or both"),
                            ([], "name of a worker"), (["a/b", "decode"], "name of a worker")):
            said = run(["kvasir", "role", *args, "--url", c.url])
            assert said.returncode != 0 and words in said.stderr, (args, said.stderr)
        reader = Reader(c, {**bodies()[0], "max_tokens": 400})
        wait_for("it runs", REQUEST_SECONDS, lambda: reader.count() >= 5, 0.005)
        mine = reader.stream.placement()["decode"]
        other = {"decode-0": "decode-1", "decode-1": "decode-0"}[mine]
        role(c, other, "prefill")  # so that the stream stays where it is, and its worker drains for a while
        assert run(["kvasir", "drain", mine, "--url", c.url]).returncode == 0
        answer = c.request("POST", f"/kvasir/role/{mine}/both", {})
        assert answer.status == 503 and "it takes no other role" in answer.body, answer.body
        assert of(c, mine)["role"] == "decode", "a worker that drains takes no other role"
        role(c, other, "both")  # now the stream can move, and the drained one ends
        got = reader.outcome()
        assert got["error"] is None and got["done"] and len(got["rows"][0]) == 400, got["error"]
        assert c.metrics().sum("kvasir_moved_total") == 1


def test_an_order_that_nobody_answers():
    """A worker that hangs does not answer, and who gave the order is told so: neither "drains" nor 10 s of waiting for a role."""
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE, decode=3) as c:
        for worker, args in (("decode-1", ["drain"]), ("decode-2", ["role", "prefill"])):
            c.kill(worker, signal.SIGSTOP)
            start = time.monotonic()
            said = run(["kvasir", args[0], worker, *args[1:], "--url", c.url])
            print(f"        {args[0]}: {said.stderr.strip()} ({time.monotonic() - start:.1f} s)")
            assert said.returncode != 0 and not said.stdout and "has not answered" in said.stderr, (said.returncode, said.stdout, said.stderr)
            c.kill(worker, signal.SIGCONT)
        assert run(["kvasir", "drain", "decode-0", "--url", c.url]).returncode == 0
        wait_for("it has drained", 20 * SLOW, lambda: all(w["id"] != "decode-0" for w in c.status()["workers"]))


def test_while_etcd_is_away():
    """The card cannot be changed, the load report says it: routers follow all the same, and etcd hears of it later."""
    if not shutil.which("etcd"):
        raise Skip("the program etcd is not installed (package etcd-server)")
    body = bodies()[0]
    with Cluster(STORIES, *SHAPE, *([] if os.environ.get("KVASIR_TEST_ETCD") else ["--etcd"]), decode=2, env=slowly(40)) as c:
        want = Reader(c, body).outcome()
        c.kill("etcd", signal.SIGSTOP)
        reader = Reader(c, body)
        wait_for("it runs", REQUEST_SECONDS, lambda: reader.count() >= 5, 0.005)
        mine = reader.stream.placement()["decode"]
        role(c, mine, "prefill")
        same(reader.outcome(), want, "moved without etcd")
        assert c.metrics().sum("kvasir_moved_total") == 1
        c.kill("etcd", signal.SIGCONT)
        role(c, mine, "decode")
        same(Reader(c, body).outcome(), want, "afterwards")
        c.idle(20)


if __name__ == "__main__":
    main()
