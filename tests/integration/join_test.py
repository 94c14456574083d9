# join_test.py - workers that come to a running cluster: one that does not fit refuses with one line and leaves nothing behind; one with
# both roles serves, and two of them prefill for each other.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *

SHAPE = ["--context", "512", "--kv-type", "f32"]


def join(cluster, program, name, *flags, seconds=30):
    """Runs a worker against the cluster's router; it is expected to end by itself."""
    args = [os.path.join(BIN, program), "--name", name, "--model-name", "m", "--discovery", f"ipc://{cluster.run_dir}/router.sock",
            "--control", f"ipc://{cluster.dir}/{name}.sock", *map(str, flags)]
    return subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, preexec_fn=die_with_parent)


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
            wait_for("links of the three workers", 60, lambda: sum(len(w["peers"]) for w in c.status()["workers"]) == 6)
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
                assert p.wait(30) == 0, "a worker did not end with 0"


main()
