# cli_test.py - what people ask a running cluster: kvasir status with caches, speeds and placements; kvasir cache flush; kvasir doctor about a
# cluster (of ours, and one made up by a small HTTP server, whose workers do not fit together) and about etcd; kvasir model list.
# SPDX-License-Identifier: Apache-2.0
import http.server
import tempfile
import threading

from kvasir_cluster import *
from etcd_test import Etcd

SHAPE = ["--context", "512", "--block-tokens", "16"]


def ids(n):
    row = golden()[11]
    return (row["prompt_ids"] + [o[0] for o in row["out"]])[:n]


def kvasir(*args, code=0, env=None):
    r = run(["kvasir", *map(str, args)], env=env)
    assert code is None or r.returncode == code, f"kvasir {' '.join(map(str, args))}: exit code {r.returncode}, not {code}: {r.stdout}{r.stderr}"
    return r.stdout if code == 0 else r.stdout + r.stderr


def test_status_flush_and_doctor_of_a_cluster():
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE) as c:
        c.complete(ids(70), 8, "remote")
        c.complete(ids(70), 8, "local")
        wait_for("both workers say what they cache", 10 * SLOW, lambda: c.metrics_now().sum("kvasir_kv_pages", state="cached") >= 8)
        wait_for("the router knows the blocks", 10 * SLOW, lambda: c.status()["router"]["index_blocks"] >= 8)
        text = kvasir("status", "--url", c.url)
        for word in ("decode-0", "tokens cached", "router's index:", "tokens/s", "last placements", "prefill-0 > decode-0", "taken"):
            wait_for(f"{word!r} in kvasir status", 5 * SLOW, lambda: word in kvasir("status", "--url", c.url))
        c.metrics()  # the status page, too, is younger than the requests
        speed = {w["id"]: w["speed"] for w in c.status()["workers"]}
        assert speed["prefill-0"]["prefill_samples"] >= 1 and speed["decode-0"]["step_samples"] >= 8, speed
        links = {p["id"]: p for w in c.status()["workers"] if w["id"] == "decode-0" for p in w["peers"]}
        assert links["prefill-0"]["samples"] == 1, links  # one transfer, of one chunk
        row = c.status()["placements"][-1]
        assert row["prompt_tokens"] == 70 and row["mode"] == "remote" and row["measured_s"] > 0
        assert row["candidates"][0]["prefill"] == "prefill-0" and row["predicted_s"] == row["candidates"][0]["ttft_s"]
        text = kvasir("doctor", "--url", c.url)
        assert "workers of one model agree" in text and "1 pairs" in text, text
        assert kvasir("model", "list", "--url", c.url).split() == ["m"]
        assert "is not here" not in kvasir("cache", "flush", "decode-0", "--url", c.url)
        m = c.metrics()
        assert m.sum("kvasir_kv_pages", state="cached", worker="decode-0") == 0, "cached pages after a flush"
        assert m.sum("kvasir_kv_pages", state="cached", worker="prefill-0") > 0, "the other worker was not meant"
        text = kvasir("cache", "flush", "--url", c.url)
        assert "decode-0: 0 tokens forgotten" in text and "prefill-0: 64 tokens forgotten" in text, text
        c.check_pages(c.metrics())
        assert c.metrics_now().sum("kvasir_kv_pages", state="cached") == 0
        wait_for("the router has heard of it", 10 * SLOW, lambda: c.status()["router"]["index_blocks"] == 0)
        answer = c.complete(ids(70), 8, "remote")
        assert answer.placement()["cached"] == "0", "a flushed prefix was found"
        assert "nobody" in kvasir("cache", "flush", "nobody", "--url", c.url, code=1)
        assert kvasir("cache", "flush", "a", "b", "--url", c.url, code=2)


WORKER = {"id": "", "role": "decode", "pid": 1, "epoch": "0", "state": "ready", "why": "", "model": "m", "control_url": "", "numerics": "a16",
          "http_url": "http://10.0.0.1:1", "layout": "l", "kv_types": "k=f32,v=f32", "rope": "r", "fingerprint": "00", "context": 512,
          "block_tokens": 64, "load_age_ms": 10, "pages": [], "peers": []}


class Pretend(http.server.BaseHTTPRequestHandler):
    workers = []

    def do_GET(self):
        body = json.dumps({"router": {"id": "router"}, "workers": self.workers, "placements": []}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def doctor_says(workers, code=0):
    Pretend.workers = [{**WORKER, **w} for w in workers]
    server = http.server.HTTPServer(("127.0.0.1", 0), Pretend)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        return kvasir("doctor", "--url", f"127.0.0.1:{server.server_port}", code=code)
    finally:
        server.shutdown()
        server.server_close()


def test_doctor_names_what_differs():
    linked = [{"id": "p", "transport": "tcp"}]
    good = [{"id": "d", "peers": [{"id": "p", "transport": "cma"}]}, {"id": "p", "role": "prefill"}]
    text = doctor_says(good)
    assert "agree in every field" in text and "warning" not in text, text
    for field, value in (("kv_types", "k=f16,v=f16"), ("rope", "q"), ("context", 1024), ("block_tokens", 16), ("layout", "x"), ("numerics", "b"),
                         ("fingerprint", "01")):
        text = doctor_says([good[0], {**good[1], field: value}])
        assert f"another {field}: \"{WORKER[field]}\" and \"{value}\"" in text, text
        assert text.count("serve m with another") == 1 and "agree" not in text, text
    assert "agree in every field" in doctor_says([good[0], {**good[1], "model": "n", "context": 7}])  # another model may differ
    assert "not linked" in doctor_says([{"id": "d"}, good[1]])
    assert "on one host" in doctor_says([{"id": "d", "peers": linked}, good[1]])
    text = doctor_says([{"id": "d", "peers": linked, "http_url": "http://10.0.0.2:1"}, good[1]])
    assert "on one host" not in text and "between hosts (1 pairs)" in text and "private" in text, text
    assert "private" not in doctor_says(good)
    assert "x is refused: no room" in doctor_says([*good, {"id": "x", "state": "refused", "why": "no room"}], code=1)
    assert "has not reported its load for 9.0 s" in doctor_says([{**good[0], "load_age_ms": 9000}, good[1]])
    assert "requests are refused" in doctor_says([good[1]], code=1)


def test_doctor_says_who_can_reach_pages():
    text = kvasir("doctor", env={"UCX_NET_DEVICES": ""}, code=None)
    assert "stays on loopback" in text and "can end a worker" not in text, text
    text = kvasir("doctor", env={"UCX_NET_DEVICES": "eth7"}, code=None)
    assert "KV goes over eth7" in text and "can end a worker; name a device of a private network" in text, text


def test_doctor_looks_at_etcd():
    with tempfile.TemporaryDirectory(prefix="kvasir-test.") as d:
        e = Etcd(d)
        try:
            wait_for("etcd answers", 20 * SLOW, lambda: run(["kvasir", "doctor", "--discovery", e.url]).returncode == 0, 0.3)
            text = kvasir("doctor", "--discovery", e.url)
            assert "version 3." in text and '0 members of cluster "default"' in text and "a read takes" in text, text
            text = kvasir("doctor", "--discovery", e.url + ",127.0.0.1:1", code=1)  # each endpoint is looked at
            assert "version 3." in text and "127.0.0.1:1: nobody answers there" in text, text
        finally:
            e.kill()
        assert "nobody answers" in kvasir("doctor", "--discovery", e.url, code=1)
        assert "no etcd address" in kvasir("doctor", "--discovery", "tcp://127.0.0.1:1", code=1)


def test_models_that_are_here():
    with tempfile.TemporaryDirectory(prefix="kvasir-test.") as d:
        os.makedirs(d + "/models")
        with open(d + "/models/other.gguf", "wb") as f:
            f.write(bytes(1000))
        r = run(["kvasir", "model", "list"], env={"KVASIR_CACHE": d})
        assert r.returncode == 0 and "smollm2" in r.stdout and "not here" in r.stdout and d + "/models/other.gguf" in r.stdout, r.stdout


if __name__ == "__main__":
    main()
