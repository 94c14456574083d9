# archs_test.py - every architecture against llama.cpp's answers (../shared/models/random, bounds of ../shared/models/README.md), by `kvasir
# generate` and by a prefill and a decode worker that move pages over UCX. Which pages travel follows from what the layers remember: whole
# blocks of keys and values or latents, the visible end of a window, and of a state the last one and the snapshot at the last block's end.
# Of the architectures tokens run freely: after a first other token, allowed only where the golden's margin is below the bound, nothing is compared.
# Of the weight types (tiny-wide-*) and of the fetched models the exact answer's tokens are forced: by `kvasir score` in one go, and over UCX by
# asking for the tokens after a prompt that ends with the golden's own ones.
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures

from kvasir_cluster import *
from placement_test import Delta

RANDOM = os.path.join(SHARED, "models", "random")
BLOCK, WINDOW, CONTEXT = 16, 16, 512
FULL, WINDOWED, STATE = "full", "window", "state"  # latents are whole blocks, too

# name, golden, context, what each layer remembers, bound of the logits, margin below which another token is a tie
MODELS = [
    ("tiny-llama3rope", None, CONTEXT, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-llama-yarn", None, 256, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-mixtral", None, CONTEXT, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-qwen2", None, CONTEXT, [[FULL]] * 3, 0.001, 0.005),
    ("tiny-qwen2moe", None, CONTEXT, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-qwen3", None, CONTEXT, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-qwen3moe", None, CONTEXT, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-gemma3", None, CONTEXT, [[FULL if i == 5 else WINDOWED] for i in range(7)], 0.02, 0),
    ("tiny-phi3", None, CONTEXT, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-phi3", "tiny-phi3.short", 256, [[FULL]] * 2, 0.001, 0.005),
    ("tiny-granite", None, CONTEXT, [[FULL]] * 3, 0.001, 0.005),
    ("tiny-gpt-oss", None, CONTEXT, [[WINDOWED], [FULL]], 0.001, 0.005),
    ("tiny-deepseek2", None, CONTEXT, [[FULL]] * 3, 0.001, 0.005),
    ("tiny-mamba", None, CONTEXT, [[STATE]] * 3, 0.001, 0.005),
    ("tiny-mamba2", None, CONTEXT, [[STATE]] * 3, 0.001, 0.005),
    ("tiny-granitehybrid", None, CONTEXT, [[STATE], [FULL], [STATE]], 0.001, 0.005),
    ("tiny-falcon-h1", None, CONTEXT, [[FULL, STATE]] * 2, 0.001, 0.005),
    ("tiny-smollm3", None, CONTEXT, [[FULL]] * 5, 0.0005, 0),  # ours, from here on: tests/vectors/engine
    ("tiny-biased", None, CONTEXT, [[FULL]] * 2, 0.0005, 0),
    ("tiny-gemma3-caps", None, CONTEXT, [[FULL if i == 2 else WINDOWED] for i in range(4)], 0.0005, 0),
    ("tiny-falcon-mamba", None, CONTEXT, [[STATE]] * 3, 0.0005, 0),
    ("tiny-deepseek2-lite", None, CONTEXT, [[FULL]] * 3, 0.0005, 0),
    ("tiny-deepseek2-v3", None, CONTEXT, [[FULL]] * 3, 0.0005, 0),
    ("tiny-deepseek2-kvb", "tiny-deepseek2-v3", CONTEXT, [[FULL]] * 3, 0.0005, 0),
    ("tiny-deepseek2-yarn", None, CONTEXT, [[FULL]] * 2, 0.0005, 0),
    ("tiny-granitehybrid-moe", None, CONTEXT, [[STATE], [FULL], [STATE]], 0.0005, 0),
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


def pages(kind, tokens, block=BLOCK, window=WINDOW):
    """What travels of one layer's cache: whatever going on needs, and going on once more from the prompt's last whole block that can be reused."""
    blocks, reused = -(-tokens // block), (tokens - 1) // block * block
    if kind == WINDOWED:
        return blocks - max(0, reused - window + 1) // block
    if kind == STATE:
        return 1 + (tokens > block)
    return blocks


def check_pages(d, layers, tokens):
    """What each group got: with one layer a group they stand in the order of the layers, and of a layer's caches."""
    kinds = [kind for layer in layers for kind in layer]
    got = [d("kvasir_kv_transfer_group_pages_total", group=str(g)) for g in range(len(kinds))]
    want = [pages(kind, tokens) for kind in kinds]
    assert got == want, f"{got} pages of {tokens} tokens landed in the groups, not {want}"
    assert d("kvasir_kv_transfer_pages_total") == d("kvasir_kv_transfer_group_pages_total") == sum(want), "pages by transport, or in a group that is not there"


def test_no_golden_is_left_out():
    """Each golden of ../shared/models/random and of this tree is one of those below, and has its model."""
    used = {golden or name for name, golden, *_ in MODELS} | {f"tiny-wide-{kind}" for kind in WIDE}
    for folder in (RANDOM, os.path.join(SOURCE, "tests", "vectors", "engine")):
        there = {f[:-len(".golden.jsonl")] for f in os.listdir(need(folder, folder)) if f.endswith(".golden.jsonl")}
        assert there and there <= used, f"nobody reads {sorted(there - used)}"


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
                check_pages(d, layers, tokens)
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


# The exact answers of one model in each weight type: bound of the logits, margin below which another token is a tie.
WIDE = {**{t: (0.001, 0.002) for t in ("f32", "f16", "bf16")},
        **{t: (0.01, 0.02) for t in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4")}}
WIDE_STEPS, STRIDE = 32, 8  # tokens of a golden; tokens asked for after each prefix


def wide(kind):
    with open(need(os.path.join(RANDOM, f"tiny-wide-{kind}.golden.jsonl"), f"the golden output in {kind}")) as f:
        rows = [json.loads(line) for line in f]
    assert len(rows) == 4 and all(len(row["out_exact"]) == WIDE_STEPS for row in rows)
    return file_of(f"tiny-wide-{kind}"), rows


def test_weight_types_by_score():
    """Every step, and all 512 logits after the prompt."""
    for kind, (bound, margin) in WIDE.items():
        model, rows = wide(kind)
        worst = ties = 0
        for row in rows:
            ids, start = row["prompt_ids"] + [o[0] for o in row["out_exact"]], len(row["prompt_ids"]) - 1
            r = run(["kvasir", "score", "--model", model, "--ids", ",".join(map(str, ids)), "--kv-type", "f32", "--context", str(CONTEXT), "--top", "512", "--json"])
            assert r.returncode == 0, r.stderr
            lines = [json.loads(line) for line in r.stdout.splitlines()[start:-1]]
            assert len(lines) == WIDE_STEPS
            for line, o in zip(lines, row["out_exact"]):
                assert line["id"] == o[0]
                worst = max(worst, abs(line["logit"] - o[1]))
                assert line["best"] == o[0] or o[2] < margin, f"{kind}: {line['best']} is best, not {o[0]}, with a margin of {o[2]}"
                ties += line["best"] != o[0]
            after = dict(map(tuple, lines[0]["top"]))
            assert len(after) == len(row["logits0_exact"]) == 512
            worst = max([worst] + [abs(after[i] - logit) for i, logit in enumerate(row["logits0_exact"])])
            assert worst <= bound, f"{kind}: a logit is {worst} away"
        print(f"        {kind}: within {worst:.6f}, {ties} ties")


def forced(c, ids, out, asked, bound, margin, what):
    """The tokens after ids, against the golden's; how many were compared, and the largest difference of a logit."""
    answer = c.complete(ids, asked, "remote", ignore_eos=True)
    assert answer.placement()["mode"] == "remote", answer.placement()
    worst = compared = 0
    for got, want in zip(rows_of(answer), out):
        if got[0] != want[0]:
            assert want[2] < margin, f"{what}, after {len(ids)} tokens: {got[0]}, not {want[0]}, with a margin of {want[2]}"
            break
        worst, compared = max(worst, abs(got[1] - want[1])), compared + 1
        assert worst <= bound, f"{what}, after {len(ids)} tokens: the logit of {want[0]} is {worst} away"
    return compared, worst


def wide_over_ucx(kind):
    bound, margin = WIDE[kind]
    model, rows = wide(kind)
    results, computed, landed = [], 0, 0
    with Cluster(model, "--context", CONTEXT, "--kv-type", "f32", "--block-tokens", BLOCK) as c:
        for row in rows:
            for k in range(0, WIDE_STEPS, STRIDE):
                out = row["out_exact"]
                ids = row["prompt_ids"] + [o[0] for o in out[:k]]
                results.append(forced(c, ids, out[k:], STRIDE, bound, margin, kind))
                computed, landed = computed + len(ids), landed + pages(FULL, len(ids))
        m = c.metrics()
        assert m.sum("kvasir_prefill_tokens_total", worker="prefill-0") == computed == m.sum("kvasir_prefill_tokens_total"), "tokens computed"
        assert m.sum("kvasir_kv_transfer_group_pages_total", group="0") == landed == m.sum("kvasir_kv_transfer_pages_total"), "pages"
        c.idle()
    steps = sum(r[0] for r in results)
    print(f"        {kind}: {steps} of {4 * WIDE_STEPS} steps, within {max(r[1] for r in results):.6f}", flush=True)
    assert steps >= 0.9 * 4 * WIDE_STEPS, "too many ties: little was compared"


def test_weight_types_by_prefill_and_decode():
    with concurrent.futures.ThreadPoolExecutor(3) as pool:  # each mostly waits for processes to come and go
        for done in [pool.submit(wide_over_ucx, kind) for kind in WIDE]:
            done.result()


def real_over_ucx(model, golden, bound, long, layers, window=0):
    """A few prefixes of each exact answer: the first token comes with the pages, the second is computed over them. layers: each layer's kind;
    with one of them a group, the pages of each are counted."""
    if os.environ.get("KVASIR_TEST_THREAD_SANITIZER") == "1":
        raise Skip("minutes under the thread sanitizer; small models show the same threads")
    with open(need(os.path.join(SHARED, "models", "real", golden), golden)) as f:
        rows = [json.loads(line) for line in f]
    results, computed, landed = [], 0, [0] * len(layers)
    with Cluster(model, "--context", 1024, "--kv-type", "f32", "--group-layers", 1) as c:
        for row in rows:
            far = len(row["prompt_ids"]) > 200
            for k in () if far and not long else (len(row["out_exact"]) // 2,) if far else (0, len(row["out_exact"]) - 2):
                ids = row["prompt_ids"] + [o[0] for o in row["out_exact"][:k]]
                results.append(forced(c, ids, row["out_exact"][k:], 2, bound, 2 * bound, golden))
                computed += len(ids)
                landed = [n + pages(kind, len(ids), 64, window) for n, kind in zip(landed, layers)]
        m = c.metrics()
        assert m.sum("kvasir_prefill_tokens_total", worker="prefill-0") == computed == m.sum("kvasir_prefill_tokens_total"), "tokens computed"
        got = [m.sum("kvasir_kv_transfer_group_pages_total", group=str(g)) for g in range(len(layers))]
        assert got == landed, f"{got} pages landed in the groups, not {landed}"
        assert m.sum("kvasir_kv_transfer_pages_total") == sum(landed), "pages in a group that is not there"
        c.idle()
    steps = sum(r[0] for r in results)
    print(f"        {steps} of {2 * len(results)} steps, within {max(r[1] for r in results):.6f}")
    assert len(results) >= 10 and steps >= 0.9 * 2 * len(results)


def test_smollm2_by_prefill_and_decode():
    real_over_ucx(smollm2(), "smollm2-135m-q4_1.golden.jsonl", 0.01, False, [FULL] * 30)


def test_gemma3_by_prefill_and_decode():
    """One prompt is longer than the window of the local layers."""
    real_over_ucx(gemma3(), "gemma-3-270m-q4_k_m.golden.jsonl", 0.05, True, [FULL if i % 6 == 5 else WINDOWED for i in range(18)], 512)


if __name__ == "__main__":
    main()
