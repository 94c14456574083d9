# misfit_test.py - a worker that does not fit the cluster ends at once; who looks at the cluster afterwards is still told which one it was, in
# which field it differs, and both values. With discovery by the router and, where it is installed, by etcd.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *


def come(c, discovery, name, *flags):
    r = run(["kvasir-decode-worker", "--name", name, "--model-name", "m", "--model", STORIES, "--kv-memory", "16M", "--discovery", discovery,
             "--control", f"ipc://{c.dir}/{name}.sock", *map(str, flags)])
    assert r.returncode == 1 and "does not fit the cluster" in r.stderr, f"{r.returncode}: {r.stderr}"


def said(*args):
    r = run(["kvasir", *args])
    assert r.returncode == 0, r.stdout + r.stderr
    return r.stdout


def misfits(*flags):
    need(STORIES, "stories260K")
    with Cluster(STORIES, *flags) as c:
        discovery = f"ipc://{c.run_dir}/router.sock"
        if flags:
            with open(f"/proc/{c.pid('decode-0')}/cmdline") as f:
                discovery = next(a for a in f.read().split("\0") if a.startswith("etcd://"))
        assert c.status()["misfits"] == [] and "cards          workers of one model agree" in said("doctor", "--url", c.url)
        start = time.monotonic()
        come(c, discovery, "decode-8", "--kv-type", "f32")
        come(c, discovery, "decode-9", "--block-tokens", 16)
        seen, _ = wait_for("the router tells of both", 10 * SLOW, lambda: len(c.status()["misfits"]) == 2 and c.status()["misfits"])
        wait_for("both are gone", 20 * SLOW, lambda: {w["id"] for w in c.status()["workers"]} == {"prefill-0", "decode-0"})
        block, kind = seen
        assert block["id"] == "decode-9" and block["field"] == "block tokens" and (block["value"], block["other_value"]) == ("16", "64"), block
        assert kind["id"] == "decode-8" and kind["field"] == "numerics class", kind
        assert "f32" in kind["value"] and "f16" in kind["other_value"], kind
        for row in seen:
            assert row["model"] == "m" and row["other"] in ("prefill-0", "decode-0") and 0 <= row["age_s"] <= time.monotonic() - start + 1, row
        text = said("status", "--url", c.url)
        assert "came and did not fit" in text and f'block tokens is "16" there and "64" at {block["other"]}' in text, text
        text = said("doctor", "--url", c.url)
        assert f'block tokens is "16" there and "64" at {block["other"]}' in text and "decode-8" in text and "agree in every field" not in text, text


def test_what_did_not_fit_is_told_afterwards():
    misfits()


def test_the_same_with_etcd():
    if not shutil.which("etcd"):
        raise Skip("the program etcd is not installed (package etcd-server)")
    misfits("--etcd")


if __name__ == "__main__":
    main()
