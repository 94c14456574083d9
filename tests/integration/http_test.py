# http_test.py - the router's face: the shapes of the OpenAI API, every kind of wrong request, and hostile HTTP.
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures

from kvasir_cluster import *
from placement_test import Delta


def cluster():
    return Cluster(need(STORIES, "stories260K"), "--context", 512)


def check_error(answer, status, what, kind=None):
    assert answer.status == status, f"{what}: HTTP {answer.status}: {answer.body[:300]}"
    error = answer.json()["error"]
    assert error["message"] and "type" in error and "code" in error and "param" in error, f"{what}: {error}"
    assert "\n" not in error["message"]
    if kind:
        assert kind in (error["code"], error["type"]), f"{what}: {error}"


def test_wrong_requests_get_an_error_object():
    with cluster() as c:
        def post(body, path="/v1/completions"):
            return c.request("POST", path, body)
        ok = {"model": "m", "prompt": "Once", "max_tokens": 2}
        chat = "/v1/chat/completions"
        cases = [
            ("bad JSON", post(b'{"model": "m", '), 400), ("not an object", post(b"[1]"), 400), ("empty body", post(b""), 400),
            ("two values", post(b'{"model":"m","prompt":"x"} {}'), 400), ("bad UTF-8", post(b'{"model":"m","prompt":"\xff\xfe"}'), 400),
            ("doubled key", post(b'{"model":"m","model":"m","prompt":"x"}'), 400),
            ("unknown model", post({**ok, "model": "nobody"}), 404), ("no prompt", post({"model": "m"}), 400),
            ("prompt of a wrong kind", post({**ok, "prompt": 7}), 400), ("token outside the vocabulary", post({**ok, "prompt": [1, 512]}), 400),
            ("negative token", post({**ok, "prompt": [-1]}), 400), ("empty token list", post({**ok, "prompt": []}), 400),
            ("temperature too high", post({**ok, "temperature": 2.1}), 400), ("temperature is text", post({**ok, "temperature": "hot"}), 400),
            ("top_p above one", post({**ok, "top_p": 1.5}), 400), ("max_tokens zero or less", post({**ok, "max_tokens": -1}), 400),
            ("n too large", post({**ok, "n": 100000}), 400), ("bad placement", post({**ok, "kvasir": {"placement": "moon"}}), 400),
            ("too long", post({**ok, "prompt": [5] * 600}), 400),
            ("no messages", post({"model": "m"}, chat), 400), ("empty messages", post({"model": "m", "messages": []}, chat), 400),
            ("bad role", post({"model": "m", "messages": [{"role": "king", "content": "x"}]}, chat), 400),
            ("no template", post({"model": "m", "messages": [{"role": "user", "content": "x"}]}, chat), 400),
            ("unknown path", c.get("/v1/nothing"), 404), ("unknown path, POST", post(ok, "/nothing"), 404),
            ("wrong method", c.get("/v1/completions"), 405), ("wrong method, POST", post(ok, "/v1/models"), 405),
        ]
        for what, answer, status in cases:
            check_error(answer, status, what)
        check_error(post({**ok, "prompt": [5] * 600}), 400, "too long", "context_length_exceeded")
        check_error(post({**ok, "model": "nobody"}), 404, "unknown model", "model_not_found")
        assert c.complete([1, 403], 2).status == 200, "the router lives"
        c.idle()


def test_hostile_http_is_refused():
    body = b'{"model":"m","prompt":[1,403],"max_tokens":2}'
    n = len(body)
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    cases = {
        "two Content-Length": post + b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (n, n) + body,
        "two different Content-Length": post + b"Content-Length: %d\r\nContent-Length: 5\r\n\r\n" % n + body,
        "Content-Length with Transfer-Encoding": post + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (n, n) + body + b"\r\n0\r\n\r\n",
        "no Host": b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % n + body,
        "two Hosts": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "negative length": post + b"Content-Length: -1\r\n\r\n",
        "length is no number": post + b"Content-Length: 1x\r\n\r\n",
        "unknown coding": post + b"Transfer-Encoding: gzip\r\n\r\n",
        "huge length": post + b"Content-Length: 99999999999\r\n\r\n",
        "huge header": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200000 + b"\r\n\r\n",
    }
    # what the library under the router would let pass: refused by us, with an answer as for any other wrong request
    ours = {"two Content-Length", "two different Content-Length", "Content-Length with Transfer-Encoding", "no Host", "two Hosts", "unknown coding"}
    with cluster() as c:
        for what, data in cases.items():
            out = c.raw(data, 5 * SLOW)
            if what in ours:
                head, _, text = out.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 400 "), f"{what}: {out[:200]!r}"
                check_error(Answer(400, [], text.decode()), 400, what, "invalid_request_error")
            assert b"HTTP/1.1 2" not in out, f"{what}: {out[:100]!r}"
            if out:
                head = out.split(b"\r\n\r\n")[0].lower()
                assert out[9:10] in b"45", f"{what}: {out[:100]!r}"
                assert b"connection: close" in head, f"{what}: the connection stays open: {head!r}"
            print(f"        {what}: {out[:out.find(chr(13).encode())].decode() if out else 'closed'}")
        for junk in (b"\0" * 1000, b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\r\n" * 500):
            assert not c.raw(junk, 3).startswith(b"HTTP/1.1 2")
        # a plain request of the same form is served: the refusals above are about the form
        out = c.raw(post + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % n + body, 30)
        assert out.startswith(b"HTTP/1.1 200"), out[:200]
        c.idle()


def test_a_body_has_a_deadline():
    """Whoever sends it byte by byte holds a place among the connections for so long only; who is merely slow is served."""
    with Cluster(need(STORIES, "stories260K"), "--context", 512, env={"KVASIR_ROUTER_BODY": "4"}) as c:
        body = json.dumps({"model": "m", "prompt": "Once", "max_tokens": 2}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection((c.host, c.port), timeout=30 * SLOW) as s:
            s.sendall(head + body[:10])
            time.sleep(0.5)
            s.sendall(body[10:])
            assert s.recv(100).startswith(b"HTTP/1.1 200")
        with socket.create_connection((c.host, c.port), timeout=0.1) as s:
            s.sendall(head.replace(b": %d" % len(body), b": 1000000"))

            def cut():
                try:
                    s.sendall(b" ")
                    return s.recv(100) == b""
                except TimeoutError:
                    return False
                except (ConnectionResetError, BrokenPipeError):
                    return True
            _, took = wait_for("it is cut", 20 * SLOW, cut)
            print(f"        cut after {took:.1f} s")
            assert took > 1


def test_shapes_of_the_api():
    with cluster() as c:
        models = c.get("/v1/models").json()
        assert models["object"] == "list" and [m["id"] for m in models["data"]] == ["m"]
        assert c.get("/health/live").status == 200 and c.get("/health/ready").status == 200
        answer = c.complete("Once upon a time", 8)
        body = answer.json()
        assert body["object"] == "text_completion" and body["model"] == "m"
        assert body["usage"]["completion_tokens"] == 8 and body["usage"]["prompt_tokens"] == len(body["choices"][0]["prompt_token_ids"])
        assert body["choices"][0]["finish_reason"] == "length" and len(body["choices"][0]["token_ids"]) == 8
        assert answer.headers["content-type"].startswith("application/json")
        metrics = c.metrics_now()
        assert metrics.sum("kvasir_requests_total") >= 1 and metrics.sum("kvasir_ttft_seconds_count") >= 1


def test_stream_is_the_same_answer():
    with cluster() as c:
        whole = c.complete([1, 403, 407], 20).choice()
        s = c.stream("/v1/completions", {"prompt": [1, 403, 407], "max_tokens": 20, "return_token_ids": True, "stream_options": {"include_usage": True},
                                         "kvasir": {"logits": True}})
        assert s.status == 200 and s.headers["content-type"].startswith("text/event-stream")
        assert s.placement()["decode"] == "decode-0"
        events = list(s.events())
        assert s.done
        s.close()
        choices = [e["choices"][0] for e in events if e["choices"]]
        assert "".join(x["text"] for x in choices) == whole["text"]
        assert [i for x in choices for i in x.get("token_ids") or []] == whole["token_ids"]
        assert [i for x in choices for i in (x.get("kvasir") or {}).get("logits", [])] == whole["kvasir"]["logits"]
        reasons = [x["finish_reason"] for x in choices if x.get("finish_reason")]
        assert reasons == ["length"]
        assert events[-1]["usage"]["completion_tokens"] == 20


def test_what_came_of_requests_is_counted():
    """Each kind of end counts once and under its own name (a deadline: stops_test.py); TTFT and the time between tokens are what was waited."""
    delay, n = 0.15, 12
    kinds = ("ok", "invalid", "cancelled", "deadline", "busy", "error")
    with Cluster(need(STORIES, "stories260K"), "--context", 512, env={"KVASIR_FAILPOINTS_SET": f"decode.after_token=delay:{1000 * delay:.0f}@1+"}) as c:
        page = c.metrics()

        def own(d, name):
            """The router's own, and the decode worker's, which the router's page repeats under a name that nobody adds to it."""
            return d(name), d(name.replace("kvasir_", "kvasir_worker_"), worker="decode-0")

        def counted(what, times=1):
            nonlocal page
            before, page = page, c.metrics()
            d = Delta(before, page)
            assert {k: d("kvasir_requests_total", outcome=k) for k in kinds} == {k: times * (k == what) for k in kinds}, f"after {what}"
            return d
        start = time.monotonic()
        assert len(c.complete([1, 403], n).choice()["token_ids"]) == n
        took = time.monotonic() - start
        d = counted("ok")
        assert own(d, "kvasir_ttft_seconds_count") == (1, 1) and own(d, "kvasir_itl_seconds_count") == (n - 1, n - 1), "tokens"
        for between, first in zip(own(d, "kvasir_itl_seconds_sum"), own(d, "kvasir_ttft_seconds_sum")):
            assert 0.9 * delay * (n - 2) <= between <= took and 0 < first and first + between <= took, (first, between, took)
        # the router's histogram: cumulative, its last bucket all of them; the second token may come with the first, and a router that stood still
        # gets some at once
        buckets = [(float(labels["le"]), v) for name, labels, v in page.samples if name == "kvasir_itl_seconds_bucket" and "worker" not in labels]
        assert [v for _, v in buckets] == sorted(v for _, v in buckets) and buckets[-1] == (float("inf"), n - 1), buckets
        assert max(v for le, v in buckets if le <= delay / 4) <= n / 2, buckets
        for body in ({"model": "m", "prompt": 7}, {"model": "nobody", "prompt": [1]}, {"model": "m", "prompt": [5] * 600}):
            assert c.request("POST", "/v1/completions", body).status in (400, 404)
        d = counted("invalid", 3)
        assert own(d, "kvasir_ttft_seconds_count") == (0, 0) == own(d, "kvasir_itl_seconds_count")
        s = c.stream("/v1/completions", {"prompt": [1, 403], "max_tokens": 400})
        events = s.events()
        for _ in range(4):
            next(events)
        s.close()
        c.idle()
        d = counted("cancelled")
        assert own(d, "kvasir_ttft_seconds_count") == (1, 1) and 3 <= own(d, "kvasir_itl_seconds_count")[0] < 399


def test_many_streams_at_once_are_whole():
    with cluster() as c:
        want = c.complete([1, 403], 30).choice()["text"]

        def one(_):
            s = c.stream("/v1/completions", {"prompt": [1, 403], "max_tokens": 30})
            text = "".join(e["choices"][0]["text"] for e in s.events() if e["choices"])
            s.close()
            return text, s.done
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            for text, done in pool.map(one, range(80)):
                assert done and text == want
        c.idle()


if __name__ == "__main__":
    main()
