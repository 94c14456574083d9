# join_test.py - workers that come to a running cluster: one that does not fit refuses with one line and leaves nothing behind; one with
# both roles serves, and two of them prefill for each other; a second model is served beside the first.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *

SHAPE = ["--context", "512", "--kv-type", "f32"]


def join(cluster, program, name, *flags, seconds=30):
    """Runs a worker against the cluster's router; it is expected to end by itself."""
    args = [os.path.join(BIN, program), "--name", name, "--model-name", "m", "--discovery", f"ipc://{cluster.run_dir}/router.sock",
            "--control", f"ipc://{cluster.dir}/{name}.sock", *map(str, flags)]
    return subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds * SLOW, preexec_fn=die_with_parent)


def refused(done, program, *words):
    assert done.returncode != 0, f"{program} came in: {done.stderr}"
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(program + ": "), f"no error line of {program}: {last}"
    for word in words:
        assert word in last, f"'{word}' is not in: {last}"


def test_workers_that_do_not_fit_say_so_and_end():
    need(STORIES, "stories260K")
    other = os.path.join(SHARED, "models", "random", "tiny-llama3rope.gguf")
    with Cluster(STORIES, *SHAPE) as c:
        refused(join(c, "kvasir-decode-worker", "decode-9", "--model", STORIES, *SHAPE, "--block-tokens", 16), "kvasir-decode-worker", "block tokens",
                "--model-name")
        refused(join(c, "kvasir-decode-worker", "decode-8", "--model", STORIES, "--context", 512, "--kv-type", "f16"), "kvasir-decode-worker",
                "numerics class")
        refused(join(c, "kvasir-prefill-worker", "prefill-9", "--model", need(other, "tiny-llama3rope"), *SHAPE), "kvasir-prefill-worker",
                "fingerprint")
        row = golden()[11]
        want = generate_alone(STORIES, row["prompt_ids"], 20, *SHAPE)
        same_as(rows_of(c.complete(row["prompt_ids"], 20, "remote")), want,
                "after three refusals")
        names = {w["id"] for w in c.status()["workers"]}
        assert names == {"prefill-0", "decode-0"}, f"left behind: {names}"
        c.idle()


def test_a_second_model_is_served_beside_the_first():
    """Each request goes to the workers of its model, by both placements; a neighbour that serves another one is no error."""
    row = golden()[11]
    other = need(os.path.join(SHARED, "models", "random", "tiny-llama3rope.gguf"), "tiny-llama3rope")
    prompts = {"m": row["prompt_ids"], "n": [1, 5, 9, 200, 31, 77, 150] * 3}
    want = {"m": generate_alone(need(STORIES, "stories260K"), prompts["m"], 20, *SHAPE), "n": generate_alone(other, prompts["n"], 20, *SHAPE)}
    more, names = [], []
    with Cluster(STORIES, *SHAPE) as c:
        try:
            for role in ("prefill", "decode"):
                names.append(f"n-{role}")
                args = [os.path.join(BIN, f"kvasir-{role}-worker"), "--name", names[-1], "--model-name", "n", "--model", other, *SHAPE, "--log-level",
                        "debug", "--discovery", f"ipc://{c.run_dir}/router.sock", "--control", f"ipc://{c.dir}/{names[-1]}.sock"]
                with open(os.path.join(c.run_dir, names[-1] + ".log"), "w") as log:
                    more.append(subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent))

            def linked():
                peers = {w["id"]: [p["id"] for p in w["peers"] if p["transport"]] for w in c.status()["workers"]}
                return peers.get("n-decode") == ["n-prefill"] and peers["decode-0"] == ["prefill-0"]
            wait_for("the second model's workers are linked, to each other only", START_SECONDS, linked)
            listed = [m["id"] for m in c.get("/v1/models").json()["data"]]
            assert sorted(listed) == ["m", "n"], listed
            workers = {"m": ("prefill-0", "decode-0"), "n": ("n-prefill", "n-decode")}
            for model in ("m", "n", "m"):
                for placement in ("remote", "local"):
                    answer = c.complete(prompts[model], 20, placement, model=model)
                    same_as(rows_of(answer), want[model], f"{model}, {placement}")
                    p = answer.placement()
                    assert p["mode"] == placement and answer.json()["model"] == model, (p, answer.json()["model"])
                    assert p["decode"] == workers[model][1], f"{model} was decoded by {p['decode']}"
                    assert placement == "local" or p["prefill"] == workers[model][0], f"{model} was prefilled by {p['prefill']}"
            answer = c.complete([1, 403], 2, model="o")
            assert answer.status == 404 and answer.json()["error"]["code"] == "model_not_found", answer.body
            for name in ("'o'", "m", "n"):
                assert re.search(rf"(^|\W){name}(\W|$)", answer.json()["error"]["message"].split(":", 1)[0 if name == "'o'" else 1]), answer.body
            m = c.metrics()
            assert m.sum("kvasir_kv_transfer_pages_total", worker="n-decode") > 0 and m.sum("kvasir_kv_transfer_pages_total", worker="decode-0") > 0
            for name in ["prefill-0", "decode-0", *names]:
                assert "level=error" not in c.log(name), f"{name} finds fault with a neighbour: {c.log(name)[:3000]}"
            assert "worker not paired" in c.log("n-decode"), "at the level debug it is said"
            c.idle()
        finally:
            for p in more:
                p.terminate()
            for p in more:
                assert p.wait(30 * SLOW) == 0, "a worker did not end with 0"


def test_workers_of_both_roles_serve_and_prefill_for_each_other():
    row = golden()[11]
    want = generate_alone(need(STORIES, "stories260K"), row["prompt_ids"], 20, *SHAPE)
    more = []
    with Cluster(STORIES, *SHAPE, prefill=0, decode=1) as c:
        try:
            for name in ("both-0", "both-1"):
                args = [os.path.join(BIN, "kvasir"), "worker", "--name", name, "--model-name", "m", "--model", STORIES, *SHAPE,
                        "--discovery", f"ipc://{c.run_dir}/router.sock", "--control", f"ipc://{c.dir}/{name}.sock"]
                with open(os.path.join(c.dir, name + ".log"), "w") as log:
                    more.append(subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent))
            # every pair of which one may prefill and the other decode: both-0 with both-1 and decode-0, both-1 with decode-0
            wait_for("links of the three workers", START_SECONDS, lambda: sum(len(w["peers"]) for w in c.status()["workers"]) == 6)
            seen = set()
            for i in range(12):
                answer = c.complete(row["prompt_ids"], 20, "remote")
                same_as(rows_of(answer), want, "remote")
                p = answer.placement()
                assert p["mode"] == "remote" and p["prefill"] != p["decode"], p
                assert p["prefill"].startswith("both-"), p
                seen.add((p["prefill"], p["decode"]))
            assert seen, "no request was placed"
            answer = c.complete(row["prompt_ids"], 20, "local")
            same_as(rows_of(answer), want, "local")
            c.idle()
        finally:
            for p in more:
                p.terminate()
            for p in more:
                assert p.wait(30 * SLOW) == 0, "a worker did not end with 0"


main()
