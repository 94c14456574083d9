# stops_test.py - what must stop, stops: a step whose only sequence was aborted, both workers at a request's deadline, a transfer with a page that
# is not what its checksum says, a request that the router itself gives up. Each time every page comes back and the next answer is right.
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures

from kvasir_cluster import *
from kvasir_wire import *
from placement_test import Delta

SHAPE = ["--context", 512, "--kv-type", "f32", "--block-tokens", 16, "--group-layers", 1]
PAGES_OF_LONG = 2 * STORIES_LAYERS  # 29 tokens, blocks of 16
KVS_REQ_DEADLINE = 108


def long_row():
    need(STORIES, "stories260K")
    return golden()[11]


def want_for(row, n):
    return generate_alone(STORIES, row["prompt_ids"], n, "--context", "512", "--kv-type", "f32")


def fired(cluster, name, point):
    return cluster.log(name).count(f"name={point} ")


def ask(c, prompt, n, placement):
    """A streamed request that nobody waits for yet; its socket."""
    data = json.dumps(salted({"model": "m", "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True, "kvasir": {"placement": placement}}))
    s = socket.create_connection((c.host, c.port), timeout=5 * SLOW)
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n{data}".encode())
    return s


def same_lives(c, pids):
    assert {name: c.pid(name) for name in c.names} == pids and all(map(alive, pids.values())), "a daemon has died"


def test_an_abort_ends_the_step_at_its_next_layer():
    """The client leaves in the first layers of a step that works for it alone: the rest of the layers is not computed. A step that works for
    another sequence too goes on to its end."""
    row = long_row()
    layer_ms = 400 * SLOW
    with Cluster(STORIES, *SHAPE, env={"KVASIR_FAILPOINTS_SET": f"device.layer=delay:{layer_ms:.0f}@1+"}) as c:
        for placement, worker in (("local", "decode-0"), ("remote", "prefill-0")):
            before = fired(c, worker, "device.layer")
            s = ask(c, row["prompt_ids"], 30, placement)
            wait_for("the step begins", 30 * SLOW, lambda: fired(c, worker, "device.layer") > before, 0.005)
            s.close()
            start = time.monotonic()
            c.metrics()  # pages that are younger than the step
            c.idle(20)
            took = time.monotonic() - start
            layers = fired(c, worker, "device.layer") - before
            print(f"        {placement}: {layers} of {STORIES_LAYERS} layers, pages back after {took:.2f} s")
            assert 1 <= layers < STORIES_LAYERS, f"{placement}: {layers} layers were computed for a client that had left"
        before = fired(c, "decode-0", "device.layer")
        layers = lambda: fired(c, "decode-0", "device.layer") - before  # noqa: E731
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(c.complete, [1], 1, "local")  # holds the device until both others are here
            wait_for("the first step begins", 30 * SLOW, layers, 0.005)
            leaver = ask(c, row["prompt_ids"], 30, "local")
            stays = pool.submit(c.complete, row["prompt_ids"][:20], 1, "local")
            wait_for("the step for both begins", 60 * SLOW, lambda: layers() > STORIES_LAYERS, 0.005)
            leaver.close()
            first.result()
            same_as(rows_of(stays.result()), generate_alone(STORIES, row["prompt_ids"][:20], 1, "--context", "512", "--kv-type", "f32"), "who stayed")
        c.idle(20)
        assert layers() == 2 * STORIES_LAYERS, f"{layers()} layers for two steps: one was cut short, or done twice"


def deadline_of(c, row, placement, worker):
    prompt = (row["prompt_ids"] * 14)[:400]
    before = c.metrics()  # of a cluster that has measured nothing yet: later such a request is refused at once, as one that cannot be in time
    answer = c.request("POST", "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 4, "kvasir": {"placement": placement}})
    assert answer.status == 504 and answer.json()["error"]["type"] == "timeout_error", f"HTTP {answer.status}: {answer.body[:300]}"
    c.idle()
    d = Delta(before, c.metrics())
    read = d("kvasir_prefill_tokens_total", worker=worker)
    print(f"        {placement}: {read:.0f} of {len(prompt)} tokens read until then")
    assert d("kvasir_requests_total", outcome="deadline") == 1
    assert 0 < read < len(prompt), f"{placement}: {read} tokens read"

    before = c.metrics()
    assert Delta(d.after, before)("kvasir_prefill_tokens_total") == 0, "somebody reads on"
    s = c.stream("/v1/completions", {"prompt": row["prompt_ids"], "max_tokens": 400, "kvasir": {"placement": placement}})
    events = list(s.events())
    s.close()
    assert len(events) > 1 and events[-1].get("error", {}).get("type") == "timeout_error", events[-1]
    assert not s.done, "[DONE] after a failure"
    c.idle()
    d = Delta(before, c.metrics())
    assert d("kvasir_requests_total", outcome="deadline") == 1
    assert 1 <= d("kvasir_generated_tokens_total", worker="decode-0") < 400
    assert Delta(d.after, c.metrics())("kvasir_generated_tokens_total") == 0, "it writes on"


def test_a_deadline_stops_both_workers():
    """While the prompt is read (by either worker), while the answer is written: an honest end, counted as such, and nobody goes on."""
    row = long_row()
    env = {"KVASIR_FAILPOINTS_SET": f"decode.after_token=delay:{30 * SLOW:.0f}@1+;device.layer=delay:{15 * SLOW:.0f}@1+"}
    for placement, worker in (("local", "decode-0"), ("remote", "prefill-0")):
        with Cluster(STORIES, *SHAPE, "--chunk-tokens", 7, "--deadline", 2 * SLOW, env=env) as c:
            pids = {name: c.pid(name) for name in c.names}
            deadline_of(c, row, placement, worker)
            same_lives(c, pids)


def test_a_worker_keeps_a_deadline_by_itself():
    """A router that gives the time and never aborts: the decode worker ends the sequence when it is up, and its prefill worker's call."""
    row = long_row()
    env = {"KVASIR_FAILPOINTS_SET": f"decode.after_token=delay:{30 * SLOW:.0f}@1+;device.layer=delay:{15 * SLOW:.0f}@1+"}
    with Cluster(STORIES, *SHAPE, "--chunk-tokens", 7, env=env) as c:
        c.complete(row["prompt_ids"], 1, "remote")
        before = c.metrics()
        s = Control(f"ipc://{c.run_dir}/decode-0.sock", id="router-2", epoch=5, role=ROUTER)
        s.call(TOKENS)
        for request, prompt, n in ((1, row["prompt_ids"], 400), (2, (row["prompt_ids"] * 14)[:400], 4)):
            start = time.monotonic()
            body = generate(request=request, tokens=prompt, n=n, place=2, prefill="prefill-0")
            status, text = s.end_of(s.call(GENERATE, body, ms=int(1500 * SLOW)), 60 * SLOW)
            took = time.monotonic() - start
            print(f"        {n} tokens for {len(prompt)}: ended after {took:.2f} s: {text}")
            assert status == KVS_REQ_DEADLINE, (status, text)
            assert took >= 1.4 * SLOW, "ended before its time"
            c.idle()
        s.close()
        d = Delta(before, c.metrics())
        assert 0 < d("kvasir_prefill_tokens_total", worker="prefill-0") < 29 + 400, "the prefill worker read on"
        assert d("kvasir_prefill_calls_total", worker="prefill-0") == 2
        same_as(rows_of(c.complete(row["prompt_ids"], 10, "remote")), want_for(row, 10), "afterwards")


def test_a_corrupt_page_is_declined_and_a_router_that_gives_up_says_so():
    row = long_row()
    want = want_for(row, 20)
    env = {"KVASIR_FAILPOINTS_SET": "kvt.corrupt_page=error@2;router.after_first_token=error@2"}
    for transport in ("shm", "tcp"):
        with Cluster(STORIES, *SHAPE, "--transport", transport, env=env) as c:
            pids = {name: c.pid(name) for name in c.names}
            before = c.metrics()
            answer = c.complete(row["prompt_ids"], 20, "remote")
            same_as(rows_of(answer), want, f"with a page that is not what its checksum says, {transport}")
            c.idle()
            d = Delta(before, c.metrics())
            assert fired(c, "prefill-0", "kvt.corrupt_page") == 1
            assert d("kvasir_kv_declined_total", worker="decode-0", reason="checksum") == 1
            assert d("kvasir_kv_declined_total") == 1, "declined for another reason"
            landed = d("kvasir_kv_transfer_pages_total", worker="decode-0")
            print(f"        {transport}: {landed:.0f} pages of {PAGES_OF_LONG} landed, {answer.placement()}")
            assert landed < PAGES_OF_LONG, "the corrupt page was counted as landed"
            assert d("kvasir_prefill_tokens_total", worker="decode-0") > 0, "nobody computed what the corrupt page had"

            s = c.stream("/v1/completions", {"prompt": row["prompt_ids"], "max_tokens": 300})
            events = list(s.events())
            s.close()
            assert "error" in events[-1] and not s.done, events[-1]
            assert fired(c, "router", "router.after_first_token") == 1
            c.idle()
            d = Delta(d.after, c.metrics())
            assert d("kvasir_requests_total", outcome="error") >= 1
            assert d("kvasir_generated_tokens_total", worker="decode-0") < 300, "the worker wrote on"

            before = d.after
            answer = c.complete(row["prompt_ids"], 20, "remote")
            same_as(rows_of(answer), want, "afterwards")
            d = Delta(before, c.metrics())
            assert answer.placement()["mode"] == "remote" and d("kvasir_kv_declined_total") == 0
            assert d("kvasir_kv_transfer_pages_total", worker="decode-0") == PAGES_OF_LONG
            same_lives(c, pids)


if __name__ == "__main__":
    main()
