# archs_test.py - every architecture against llama.cpp's answers (../shared/models/random, bounds of ../shared/models/README.md), by `kvasir
# generate` and by a prefill and a decode worker that move pages over UCX. Which pages travel follows from what the layers remember: whole
# blocks of keys and values or latents, the visible end of a window, and of a state the last one and the snapshot at the last block's end.
# Tokens run freely here: after a first other token, allowed only where the golden's margin is below the bound, nothing is compared.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *
from placement_test import Delta

RANDOM = os.path.join(SHARED, "models", "random")
BLOCK, WINDOW, CONTEXT = 16, 16, 512
FULL, WINDOWED, STATE = "full", "window", "state"  # latents are whole blocks, too

# name, golden, context, what each layer remembers, bound of the logits, margin below which another token is a tie
MODELS = [
    ("tiny-llama3rope", None, CONTEXT, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-llama-yarn", None, 256, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-mixtral", None, CONTEXT, None, 0.001, 0.005),
    ("tiny-qwen2", None, CONTEXT, [[FULL]] * 3, 0.001, 0.005),
    ("tiny-qwen2moe", None, CONTEXT, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-qwen3", None, CONTEXT, None, 0.001, 0.005),
    ("tiny-qwen3moe", None, CONTEXT, None, 0.001, 0.005),
    ("tiny-gemma3", None, CONTEXT, [[FULL if i == 5 else WINDOWED] for i in range(7)], 0.02, 0),
    ("tiny-phi3", None, CONTEXT, None, 0.001, 0.005),
    ("tiny-phi3", "tiny-phi3.short", 256, None, 0.001, 0.005),
    ("tiny-granite", None, CONTEXT, [[FULL]] * 3, 0.001, 0.005),
    ("tiny-gpt-oss", None, CONTEXT, [[WINDOWED], [FULL]], 0.001, 0.005),
    ("tiny-deepseek2", None, CONTEXT, [[FULL]] * 3, 0.001, 0.005),
    ("tiny-mamba", None, CONTEXT, [[STATE]] * 3, 0.001, 0.005),
    ("tiny-mamba2", None, CONTEXT, [[STATE]] * 3, 0.001, 0.005),
    ("tiny-granitehybrid", None, CONTEXT, [[STATE], [FULL], [STATE]], 0.001, 0.005),
    ("tiny-falcon-h1", None, CONTEXT, [[FULL, STATE]] * 2, 0.001, 0.005),
    ("tiny-smollm3", None, CONTEXT, [[FULL]] * 5, 0.0005, 0),  # ours: tests/vectors/engine
]


def at(file):
    ours = os.path.join(SOURCE, "tests", "vectors", "engine", file)
    return ours if os.path.exists(ours) else os.path.join(RANDOM, file)


def rows_of_golden(name, golden):
    with open(need(at(f"{golden or name}.golden.jsonl"), f"the golden output of {name}")) as f:
        return [json.loads(line) for line in f]


def file_of(name):
    return need(at(f"{name}.gguf"), name)


def far_from(got, row, bound, margin):
    """The largest difference of a logit, up to a tie that went the other way."""
    worst = 0
    assert len(got) == len(row["out"]), f"{len(got)} tokens, not {len(row['out'])}"
    for i, (g, o) in enumerate(zip(got, row["out"])):
        if g[0] != o[0]:
            assert o[2] < margin, f"token {i} is {g[0]}, not {o[0]}, with a margin of {o[2]}"
            break
        worst = max(worst, abs(g[1] - o[1]))
        assert worst <= bound, f"token {i}: the logit is {worst} away"
    return worst


def pages(kind, tokens):
    """What travels of one layer's cache: whatever going on needs, and going on once more from the prompt's last whole block that can be reused."""
    blocks, reused = -(-tokens // BLOCK), (tokens - 1) // BLOCK * BLOCK
    if kind == WINDOWED:
        return blocks - max(0, reused - WINDOW + 1) // BLOCK
    if kind == STATE:
        return 1 + (tokens > BLOCK)
    return blocks


def test_generate_equals_the_goldens():
    for name, golden, context, _, bound, margin in MODELS:
        worst = 0
        for flags in ([], ["--chunk-tokens", "7", "--block-tokens", "4", "--threads", "2"]):
            for row in rows_of_golden(name, golden):
                got = generate_alone(file_of(name), row["prompt_ids"], len(row["out"]), "--context", str(context), "--kv-type", "f32",
                                     "--ignore-eos", *flags)
                worst = max(worst, far_from(got, row, bound, margin))
        print(f"        {golden or name}: within {worst:.6f}")


def test_the_goldens_from_their_texts():
    """The file's own tokenizer, with what it puts before the first word."""
    for name, golden, context, _, _, _ in MODELS:
        for row in rows_of_golden(name, golden):
            if not row["prompt"]:
                continue
            r = run(["kvasir", "generate", "--model", file_of(name), "--prompt", row["prompt"], "-n", "8", "--ignore-eos", "--json",
                     "--context", str(context), "--kv-type", "f32"])
            assert r.returncode == 0, r.stderr
            assert [json.loads(line)["id"] for line in r.stdout.splitlines()] == [o[0] for o in row["out"][:8]], f"{name}: {row['prompt']!r}"


def test_prefill_and_decode_equal_the_goldens():
    for name, golden, context, layers, bound, margin in MODELS:
        worst = 0
        with Cluster(file_of(name), "--context", context, "--kv-type", "f32", "--block-tokens", BLOCK, "--group-layers", 1,
                     "--chunk-tokens", 40) as c:
            for row in rows_of_golden(name, golden):
                tokens, before = len(row["prompt_ids"]), c.metrics()
                answer = c.complete(row["prompt_ids"], len(row["out"]), "remote", ignore_eos=True)
                d = Delta(before, c.metrics())
                worst = max(worst, far_from(rows_of(answer), row, bound, margin))
                assert answer.placement()["mode"] == "remote", answer.placement()
                assert d("kvasir_prefill_tokens_total", worker="prefill-0") == tokens == d("kvasir_prefill_tokens_total")
                if layers:
                    want = sum(pages(kind, tokens) for layer in layers for kind in layer)
                    assert d("kvasir_kv_transfer_pages_total") == want, f"{d('kvasir_kv_transfer_pages_total')} pages of {tokens} tokens, not {want}"
            c.idle()
        print(f"        {golden or name}: within {worst:.6f}")


def test_model_info_says_what_a_model_has():
    """What grows with every token, what does not, and the parts that only some have."""
    for name, words in (("tiny-gemma3", ["window         the last 16 tokens in 6 of 7 layers", "kv a token     96 bytes in f16",
                                         "kv in windows  9216 bytes a sequence in f16, in 6 layers"]),
                        ("tiny-mixtral", ["experts        2 of 8 a token, feed-forward 24"]),
                        ("tiny-deepseek2", ["latent         rank 32, with 8 rotated; queries' rank 24",
                                            "experts        2 of 8 a token, feed-forward 32, shared 32, none in the first 1 layers",
                                            "kv a token     240 bytes in f16"]),
                        ("tiny-qwen3", ["tokenizer      llama\n"])):
        r = run(["kvasir", "model", "info", file_of(name)])
        assert r.returncode == 0, r.stderr
        for word in words:
            assert word in r.stdout, f"{name}: {word!r} is not in\n{r.stdout}"


if __name__ == "__main__":
    main()
