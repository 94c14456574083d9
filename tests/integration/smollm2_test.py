# smollm2_test.py - the sample model through HTTP: the exact answer, the same by every placement; and how little memory a router needs.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *
from placement_test import Delta, must_fail
import kvasir_cluster

QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."


# 30 layers, 3 KV heads of 64 dims: elements of K and V of one token in one layer; KV in f16, blocks of 64 tokens, all as they are by default.
LAYERS, KV_BYTES, BLOCK, CHUNK = 30, 3 * (64 + 64) * 2, 64, 128


def check_remote(answer, n, groups, lane, d):
    blocks = -(-n // BLOCK)
    size = blocks * BLOCK * LAYERS * KV_BYTES
    assert answer.placement() == {"mode": "remote", "prefill": "prefill-0", "decode": "decode-0", "cached": "0", "bytes": str(size),
                                  "transport": lane}, answer.placement()
    assert d("kvasir_prefill_tokens_total", worker="prefill-0") == n, "tokens prefilled on the prefill worker"
    assert d("kvasir_prefill_tokens_total", worker="decode-0") == 0, "tokens prefilled on the decode worker"
    assert d("kvasir_prefill_chunks_total", worker="prefill-0") == -(-n // CHUNK), "chunks"
    assert d("kvasir_kv_transfer_pages_total", worker="decode-0", transport=lane) == blocks * groups == d("kvasir_kv_transfer_pages_total"), "pages"
    assert d("kvasir_kv_transfer_bytes_total", worker="decode-0", transport=lane) == size == d("kvasir_kv_transfer_bytes_total"), "bytes"
    assert d("kvasir_kv_declined_total") == 0, "declined pages"


def check_local(answer, n, d):
    assert answer.placement() == {"mode": "local", "prefill": "decode-0", "decode": "decode-0", "cached": "0", "bytes": "0",
                                  "transport": "none"}, answer.placement()
    assert d("kvasir_prefill_tokens_total", worker="decode-0") == n, "tokens prefilled on the decode worker"
    assert d("kvasir_prefill_tokens_total", worker="prefill-0") == 0, "tokens prefilled on the prefill worker"
    assert d("kvasir_prefill_chunks_total", worker="decode-0") == -(-n // CHUNK), "chunks"
    assert d("kvasir_kv_transfer_pages_total") == 0 == d("kvasir_kv_transfer_bytes_total"), "pages"


def test_capital_of_france_by_every_placement():
    seen = []
    for transport in ("shm", "tcp"):
        with Cluster(smollm2(), "--transport", transport) as c:
            before = c.metrics()
            groups = len({labels["group"] for name, labels, _ in before.samples if name == "kvasir_kv_pages" and labels.get("worker") == "decode-0"})
            for placement in ("remote", "local"):
                answer = c.chat(QUESTION, 32, placement)
                choice = answer.choice()
                assert choice["message"]["content"] == ANSWER, f"{placement}, {transport}: {choice['message']['content']!r}"
                assert choice["finish_reason"] == "stop"
                after = c.metrics()
                d, before, n = Delta(before, after), after, len(choice["prompt_token_ids"])
                assert n > 20 and d("kvasir_prefix_cached_tokens_total") == 0
                if placement == "remote":
                    check_remote(answer, n, groups, transport, d)
                    must_fail(check_local, answer, n, d)
                else:
                    check_local(answer, n, d)
                    must_fail(check_remote, answer, n, groups, transport, d)
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
