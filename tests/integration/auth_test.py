# auth_test.py - who may talk: with a shared key nobody comes up on a control stream, and no order is taken, without it; all daemons are started
# with the key as with any other flag, and serve as ever. The companion has no key: there the same strangers are taken for members.
# SPDX-License-Identifier: Apache-2.0

from kvasir_cluster import *
from kvasir_wire import *

SHAPE = ["--context", 512, "--kv-type", "f32", "--block-tokens", 16, "--group-layers", 1, "--chunk-tokens", 7]
KEY, OTHER = "correct-horse-battery-staple", "correct-horse-battery-stapler"
PROMPT = [1] + [403] * 100


def greet(url, **fields_of_hello):
    """What a HELLO is answered with: "HELLO", or the text of the GOAWAY."""
    s = Control(url)
    key = fields_of_hello.pop("auth", "")
    s.send(frame(HELLO, 0, hello(**fields_of_hello) + data(8, key)))
    kind, _, payload = s.next(60)
    s.close()
    return "HELLO" if kind == HELLO else dict(fields(payload)).get(2, b"").decode()


def post(c, path, key=None, **headers):
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return c.request("POST", path, {}, headers)


def test_nobody_without_the_key():
    need(STORIES, "stories260K")
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "key")
        with open(path, "w") as f:
            f.write(KEY + "\n")
        with Cluster(STORIES, *SHAPE, "--auth-file", path) as c:
            want = generate_alone(STORIES, PROMPT, 12, "--context", "512", "--kv-type", "f32")
            same_as(rows_of(c.complete(PROMPT, 12, "remote")), want, "with a key")
            for name in c.names:
                url = f"ipc://{c.run_dir}/{name}.sock"
                for role in (ROUTER, PREFILL_ROLE, CLIENT):
                    for key in ("", OTHER, KEY[:-1]):
                        assert "--auth-file" in greet(url, id="stranger", role=role, auth=key), f"{name} took role {role} with key '{key}'"
            assert greet(f"ipc://{c.run_dir}/router.sock", id="client", role=CLIENT, auth=KEY) == "HELLO"
            assert greet(f"ipc://{c.run_dir}/decode-0.sock", id="router-2", role=ROUTER, auth=KEY) == "HELLO"
            for order in ("/kvasir/drain/decode-0", "/kvasir/role/decode-0/prefill"):
                for key in (None, OTHER):
                    answer = post(c, order, key)
                    assert answer.status == 403 and "--auth-file" in answer.json()["error"]["message"], answer.body
            assert post(c, "/kvasir/drain/nobody", KEY).status == 404  # may ask, but there is none
            assert run(["kvasir", "drain", "decode-0", "--url", c.url]).returncode == 1
            pids = {name: c.pid(name) for name in c.names}
            said = run(["kvasir", "role", "prefill-0", "both", "--url", c.url, "--auth-file", path])
            assert said.returncode == 0 and "prefill-0 is both" in said.stdout, said.stderr
            said = run(["kvasir", "role", "prefill-0", "prefill", "--url", c.url], env={"KVASIR_AUTH": KEY})
            assert said.returncode == 0, said.stderr
            same_as(rows_of(c.complete(PROMPT, 12, "remote")), want, "afterwards")
            assert {name: c.pid(name) for name in c.names} == pids
            # a worker that has another key stays outside
            late = subprocess.Popen([os.path.join(BIN, "kvasir-decode-worker"), "--model", STORIES, "--model-name", "m", "--name", "late", "--discovery",
                                     f"ipc://{c.run_dir}/router.sock", "--log-level", "debug", *map(str, SHAPE)], stdin=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, text=True, env={**os.environ, "KVASIR_AUTH": OTHER}, preexec_fn=die_with_parent)
            try:
                line = ""
                while "dial failed" not in line:
                    line = late.stderr.readline()
                    assert line, "it ended"
                assert "peer_refused" in line and "--auth-file" in line, line
                assert KEY not in line and OTHER not in line
            finally:
                late.kill()
                late.stderr.close()
                late.wait()
            assert {w["id"] for w in c.status()["workers"]} == {"prefill-0", "decode-0"}
            assert KEY not in "".join(c.log(name) for name in c.names) + c.stderr(), "the key stands in a log"
            c.idle(20)


def test_without_a_key_this_machine_is_trusted():
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE) as c:
        assert greet(f"ipc://{c.run_dir}/router.sock", id="stranger", role=CLIENT) == "HELLO"
        assert greet(f"ipc://{c.run_dir}/decode-0.sock", id="router-2", role=ROUTER) == "HELLO"
        answer = post(c, "/kvasir/drain/decode-0", Origin="http://evil.example")
        assert answer.status == 403 and "web pages" in answer.json()["error"]["message"], answer.body
        assert post(c, "/kvasir/drain/nobody").status == 404
        assert post(c, "/kvasir/role/decode-0/king").status == 400
        assert post(c, "/kvasir/role/decode-0").status == 400
        c.idle(20)


def test_beyond_this_machine_only_with_a_key():
    need(STORIES, "stories260K")
    for program, flags in (("kvasir-router", ["--listen", "127.0.0.1:0"]),
                           ("kvasir-decode-worker", ["--model", STORIES, "--discovery", "ipc:///nowhere", "--listen", "127.0.0.1:0"])):
        r = run([program, "--control", "tcp://0.0.0.0:0", *flags])
        assert r.returncode != 0 and "--auth-file FILE" in r.stderr, r.stderr
        r = run([program, "--control", "tcp://0.0.0.0:0", *flags], env={"KVASIR_AUTH": "short"})
        assert r.returncode != 0 and "16 to 127" in r.stderr, r.stderr
    r = run(["kvasir-decode-worker", "--model", STORIES, "--discovery", "tcp://127.0.0.1:1", "--listen", "127.0.0.1:0", "--control",
             "tcp://0.0.0.0:0"], 20, {"KVASIR_AUTH": "0123456789abcdef"})
    assert r.returncode != 0 and "--advertise HOST" in r.stderr, r.stderr  # others would dial themselves
    r = run(["kvasir-router", "--control", "tcp://127.0.0.1:0", "--listen", "127.0.0.1:0", "--auth-file", "/no/such/file"])
    assert r.returncode != 0 and "/no/such/file" in r.stderr, r.stderr


if __name__ == "__main__":
    main()
