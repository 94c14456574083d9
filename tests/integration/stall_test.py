# stall_test.py - clients that do not read their streams: cut after --client-stall, with their sequences, pages and bytes; those that read slowly,
# or whose kernel has room for what comes, are not. Each time the metric says which way it went; with the limit off nobody is cut.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *

STALL = 2 * SLOW
N, CHOICES = 300, 4
SHAPE = ["--context", 512, "--kv-type", "f32", "--block-tokens", 16, "--group-layers", 1, "--chunk-tokens", 32]
SLOWLY = f"decode.after_token=delay:{8 * SLOW:.0f}@1+"
BODY = {"model": "m", "prompt": [1] + [403] * 60, "max_tokens": N, "temperature": 0, "n": CHOICES, "return_token_ids": True, "ignore_eos": True,
        "kvasir": {"logits": True, "placement": "remote"}}


def cluster(stall=STALL, *flags, **more):
    return Cluster(need(STORIES, "stories260K"), *SHAPE, *flags, env={"KVASIR_ROUTER_CLIENT_STALL": str(stall), "KVASIR_FAILPOINTS_SET": SLOWLY}, **more)


def ask(c, buffer, **more):
    """A streamed request from a client whose kernel keeps so much for it; nothing is read yet."""
    data = json.dumps(salted({**BODY, "stream": True, **more})).encode()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    s.settimeout(REQUEST_SECONDS)
    s.connect((c.host, c.port))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(data) + data)
    return s


def running(c):
    return c.metrics_now().get("kvasir_router_requests", state="running")


def cut(c, reason="stalled"):
    return c.metrics_now().get("kvasir_router_clients_cut_total", reason=reason)


def rest(s):
    """All that still comes, and whether it ended with a reset."""
    out = b""
    try:
        while piece := s.recv(65536):
            out += piece
        return out, False
    except ConnectionResetError:
        return out, True
    finally:
        s.close()


def tokens(raw):
    """By choice: [(id, logit)] of a stream in its chunked coding."""
    body, at = raw.split(b"\r\n\r\n", 1)[1], 0
    plain = b""
    while at < len(body):
        end = body.index(b"\r\n", at)
        n = int(body[at:end], 16)
        plain += body[end + 2:end + 2 + n]
        at = end + 4 + n
    out = {i: [] for i in range(CHOICES)}
    for line in plain.split(b"\n"):
        if line.startswith(b"data: {"):
            for x in json.loads(line[6:])["choices"]:
                out[x["index"]] += list(zip(x.get("token_ids") or [], (x.get("kvasir") or {}).get("logits") or []))
    return out, b"data: [DONE]" in plain


def test_who_does_not_read_is_cut_and_who_reads_slowly_is_not():
    with cluster() as c:
        whole = c.request("POST", "/v1/completions", BODY).json()["choices"]
        want = {x["index"]: list(zip(x["token_ids"], x["kvasir"]["logits"])) for x in whole}
        assert all(len(rows) == N for rows in want.values()), "the model stopped early"
        before = c.metrics()
        start = time.monotonic()
        s = ask(c, 4096)
        wait_for("it runs", 30 * SLOW, lambda: running(c) == 1)
        wait_for("the client is cut", 10 * STALL, lambda: cut(c) == 1)
        took = time.monotonic() - start
        back = c.idle(10)
        now = c.metrics()
        print(f"        cut after {took:.2f} s (limit {STALL:g}), pages back after {back:.2f} s more")
        assert took >= STALL, "too soon"
        assert running(c) == 0
        made = now.get("kvasir_generation_tokens_total") - before.get("kvasir_generation_tokens_total")
        assert 0 < made < N * CHOICES, f"{made} tokens: it was not cut in mid-stream"
        assert now.get("kvasir_requests_total", outcome="cancelled") == before.get("kvasir_requests_total", outcome="cancelled") + 1
        line = re.search(r'msg="client cut" req=\w+ reason=stalled waiting_bytes=(\d+)', c.log("router"))
        assert line and int(line.group(1)) > 0, "the log does not say why"
        got, reset = rest(s)
        assert reset and b"[DONE]" not in got, "the client could take it for a whole answer"

        s, got, start = ask(c, 4096), b"", time.monotonic()
        while time.monotonic() - start < 3 * STALL:
            got += s.recv(1024)
            time.sleep(0.1)
        assert running(c) == 1, "it was over before it had been slow"
        more, reset = rest(s)
        assert not reset, "a client that moved was cut"
        rows, done = tokens(got + more)
        assert done and rows == want, "a slow client's answer"
        assert cut(c) == 1, "a client that moved was cut"
        print(f"        {len(got)} bytes in {3 * STALL:g} s, then the rest: whole")

        s, start = ask(c, 200000, n=1), time.monotonic()  # its kernel has room for all of it: nothing waits, though nobody reads
        wait_for("it has ended", REQUEST_SECONDS, lambda: running(c) == 0)
        time.sleep(max(0, start + 2 * STALL - time.monotonic()))
        more, reset = rest(s)
        assert not reset and cut(c) == 1, "cut though nothing waited for it"
        rows, done = tokens(more)
        assert done and rows[0] == want[0]
        assert cut(c, "vanished") == 0
        c.idle()


def test_an_answer_that_is_no_stream():
    """While it is made nothing waits for the client; when it is there and nobody takes it, the connection goes."""
    with cluster() as c:
        crowd = [ask(c, 4096, stream=False) for _ in range(2)]
        wait_for("all are answered", REQUEST_SECONDS, lambda: c.metrics_now().get("kvasir_requests_total", outcome="ok") == 2)
        assert cut(c) == 0, "cut while it was waiting for its answer"
        for s in crowd:
            got, reset = rest(s)
            assert not reset and len(json.loads(got.split(b"\r\n\r\n", 1)[1])["choices"]) == CHOICES
        c.idle()


def test_without_the_limit_the_deadline_is_the_end():
    deadline = 5 * STALL
    with cluster(0, "--deadline", deadline) as c:
        s = ask(c, 4096, max_tokens=440)  # N are made just before the deadline, and where buffers have room for all that is no stall
        wait_for("it runs", 30 * SLOW, lambda: running(c) == 1)
        time.sleep(2 * STALL)
        assert running(c) == 1 and cut(c) == 0, "cut though the limit is off"
        wait_for("the deadline ends it", 10 * deadline, lambda: c.metrics_now().get("kvasir_requests_total", outcome="deadline") == 1)
        c.idle()
        s.close()


if __name__ == "__main__":
    main()
