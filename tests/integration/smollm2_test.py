# smollm2_test.py - the sample model through HTTP: the exact answer, the same by every placement; and how little memory a router needs.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *
import kvasir_cluster

QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."


def test_capital_of_france_by_every_placement():
    seen = []
    for transport in ("shm", "tcp"):
        with Cluster(smollm2(), "--transport", transport) as c:
            for placement in ("remote", "local"):
                answer = c.chat(QUESTION, 32, placement)
                choice = answer.choice()
                assert choice["message"]["content"] == ANSWER, f"{placement}, {transport}: {choice['message']['content']!r}"
                assert choice["finish_reason"] == "stop"
                assert answer.placement()["mode"] == placement
                if placement == "remote":
                    assert answer.placement()["transport"] == transport and int(answer.placement()["bytes"]) > 0
                seen.append((choice["token_ids"], choice["kvasir"]["logits"]))
            c.idle()
    assert all(s == seen[0] for s in seen), "the placements differ"


def test_streamed_chat_is_the_same_text():
    with Cluster(smollm2()) as c:
        s = c.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32})
        text = "".join(e["choices"][0]["delta"].get("content") or "" for e in s.events() if e["choices"])
        assert s.done and text == ANSWER
        s.close()
        r = run(["kvasir", "chat", "--url", c.url, "--message", QUESTION, "--temperature", "0", "--stats", "--placement", "remote"])
        assert r.returncode == 0 and r.stdout.startswith(ANSWER + "\n"), r.stdout + r.stderr
        for word in ("TTFT", "placement      mode=remote prefill=prefill-0 decode=decode-0", "KV moved", "by shm"):
            assert word in r.stdout, f"{word!r} is not in {r.stdout!r}"


def test_router_stays_small():
    """VmHWM of the release build's router below 64 MB after 100 requests with the sample model."""
    release = os.environ.get("KVASIR_RELEASE_BIN", "")
    need(os.path.join(release, "kvasir-router"), "the release build (./dev build)")
    model, old = smollm2(), kvasir_cluster.BIN
    kvasir_cluster.BIN = release
    try:
        with Cluster(model, "--local-threshold", 1) as c:
            for i in range(100):
                assert c.chat(f"Say the number {i}.", 2).status == 200
            with open(f"/proc/{c.pid('router')}/status") as f:
                peak = next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))
            print(f"        router: {peak / 1024:.1f} MB at its peak")
            assert peak < 64 * 1024
    finally:
        kvasir_cluster.BIN = old


if __name__ == "__main__":
    main()
