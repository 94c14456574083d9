# generate_test.py - the engine alone, by the program: goldens of other engines, and the same numbers however the work is cut.
# SPDX-License-Identifier: Apache-2.0
import json
import math
import tempfile

from kvasir_cluster import *

FULL = ["--context", "512", "--kv-type", "f32"]


def json_lines(command, model, ids, *flags, env=None):
    r = run(["kvasir", command, "--model", model, "--ids", ",".join(map(str, ids)), "--json", *flags], env=env)
    assert r.returncode == 0, r.stderr
    return [json.loads(line) for line in r.stdout.splitlines()]


def test_stories_equals_the_golden():
    model = need(STORIES, "stories260K")
    worst = worst_margin = 0
    for row in golden() + [continued(golden()[11])]:
        got = json_lines("generate", model, row["prompt_ids"], "-n", str(row["n_out"]), *FULL)
        assert all(set(g) == {"id", "logit", "margin", "text"} for g in got), got[0]
        assert [g["id"] for g in got] == [o[0] for o in row["out"]], f"ids of {row['prompt']!r}"
        worst = max(worst, max(abs(g["logit"] - o[1]) for g, o in zip(got, row["out"])))
        worst_margin = max(worst_margin, max(abs(g["margin"] - o[2]) for g, o in zip(got, row["out"])))
    assert worst <= 0.001, f"a logit is {worst} away"
    assert worst_margin <= 0.002, f"a margin (the difference of two logits) is {worst_margin} away"
    print(f"        14 prompts and a long one, logits within {worst:.6f}, margins within {worst_margin:.6f}")


def test_text_is_the_goldens_text():
    model = need(STORIES, "stories260K")
    for row in golden(4):
        r = run(["kvasir", "generate", "--model", model, "--ids", ",".join(map(str, row["prompt_ids"])), "-n", str(row["n_out"]), "--json", *FULL])
        text = "".join(json.loads(line)["text"] for line in r.stdout.splitlines())
        assert text == row["text"], f"{text[:80]!r} is not {row['text'][:80]!r}"


def test_numbers_do_not_depend_on_the_cut():
    model = need(STORIES, "stories260K")
    row = golden()[11]
    for kv in ("f32", "f16"):
        whole = generate_alone(model, row["prompt_ids"], 160, "--context", "512", "--kv-type", kv)
        more = row["prompt_ids"] + [w[0] for w in whole[:100]]  # 129 tokens: three blocks of 64, and a chunk of 64 is not all of it
        for flags in (["--chunk-tokens", "1"], ["--chunk-tokens", "7"], ["--chunk-tokens", "64"], ["--chunk-tokens", "512"], ["--threads", "1"],
                      ["--threads", "3"], ["--block-tokens", "16", "--group-layers", "1"],
                      ["--block-tokens", "1", "--group-layers", "2", "--chunk-tokens", "3"]):
            cut = ["--context", "512", "--kv-type", kv, *flags]
            same_as(generate_alone(model, row["prompt_ids"], 60, *cut), whole[:60], f"{kv} {flags}")
            same_as(generate_alone(model, more, 60, *cut), whole[100:], f"{kv} {flags}, continued")


def has_avx2():
    with open("/proc/cpuinfo") as f:
        flags = next((line.split() for line in f if line.startswith("flags")), [])
    return {"avx2", "fma", "f16c"} <= set(flags)


def test_every_path_of_the_engine_gives_the_same_numbers():
    model = need(STORIES, "stories260K")
    ids = golden()[2]["prompt_ids"]
    out, lacking = {}, []
    for isa in ("ref", "avx2"):
        r = run(["kvasir", "generate", "--model", model, "--ids", ",".join(map(str, ids)), "-n", "50", "--json"], env={"KVASIR_ISA": isa})
        if isa == "avx2" and not has_avx2():
            assert r.returncode > 0 and "\"avx2\" is not in this build or not on this CPU" in r.stderr, f"{r.returncode}, {r.stderr}"
            lacking.append(isa)
            continue
        assert r.returncode == 0, f"{isa}: exit code {r.returncode}: {r.stderr}"
        out[isa] = r.stdout
    print(f"        paths: {', '.join(out)}{'; this CPU lacks ' + ', '.join(lacking) if lacking else ''}")
    assert "ref" in out and len(set(out.values())) == 1


def test_seed_decides_what_is_sampled():
    model = need(STORIES, "stories260K")
    flags = ["--temperature", "1", "--top-k", "40", "--top-p", "0.95"]
    a, b, c = (generate_alone(model, [1], 40, *flags, "--seed", seed) for seed in ("7", "7", "8"))
    assert a == b
    assert a != c, "another seed gave the same text"


def test_score_gives_the_golden_its_logits():
    model = need(STORIES, "stories260K")
    row = golden()[1]
    ids = row["prompt_ids"] + [o[0] for o in row["out"]]
    lines = json_lines("score", model, ids, "--top", "3", *FULL)
    assert len(lines) == len(ids)  # n - 1 positions and the sum
    start = len(row["prompt_ids"]) - 1
    for line, (i, logit, margin) in zip(lines[start:-1], row["out"]):
        assert line["id"] == i == line["best"] == line["top"][0][0]
        assert abs(line["logit"] - logit) <= 0.001
        assert line["best_logit"] == line["logit"] == line["top"][0][1]
        assert abs(line["best_logit"] - line["top"][1][1] - margin) <= 0.002
    assert [line["pos"] for line in lines[:-1]] == list(range(len(ids) - 1))
    check_total(lines)


def check_total(lines):
    last = lines[-1]
    assert set(last) == {"tokens", "nll", "perplexity"} and last["tokens"] == len(lines) - 1
    assert abs(last["nll"] + sum(line["logprob"] for line in lines[:-1])) < 1e-6
    assert math.isclose(last["perplexity"], math.exp(last["nll"] / last["tokens"]), rel_tol=1e-6)


def test_score_of_tokens_that_are_not_the_best():
    """The whole vocabulary as `top`: logprob, best and the shorter lists are worked out from it here."""
    model = need(STORIES, "stories260K")
    ids = golden()[1]["prompt_ids"] + [300, 411, 17, 500]
    whole, short, none = (json_lines("score", model, ids, "--top", str(k), *FULL) for k in (512, 5, 0))
    assert len(whole) == len(short) == len(none) == len(ids)
    others = 0
    for want, line, bare in zip(whole[:-1], short, none):
        assert set(line) == {"pos", "id", "logit", "logprob", "best", "best_logit", "top"}, line
        top = want["top"]
        assert sorted(i for i, _ in top) == list(range(512)), "not every token is there once"
        assert top == sorted(top, key=lambda t: (-t[1], t[0]))
        assert line["top"] == top[:5] and bare["top"] == []
        logit = dict(map(tuple, top))
        assert line["logit"] == logit[line["id"]] and [line["best"], line["best_logit"]] == top[0]
        assert abs(line["logprob"] - (line["logit"] - math.log(math.fsum(math.exp(v) for v in logit.values())))) < 1e-6
        assert {**line, "top": 0} == {**want, "top": 0} == {**bare, "top": 0}
        others += line["best"] != line["id"] and line["best_logit"] > line["logit"]
    assert others >= 4, f"only {others} tokens are not the best ones"
    check_total(whole)


def exact_answer(model, golden, runs):
    """The tokens of out_exact forced: (type of KV, bound of 16-bit activations, rows) each; no other best token beyond twice the bound."""
    if os.environ.get("KVASIR_TEST_THREAD_SANITIZER") == "1":
        raise Skip("these prompts take 20 minutes under the thread sanitizer; small models show the same threads")
    path = need(os.path.join(SHARED, "models", "real", golden), golden)
    rows = [json.loads(line) for line in open(path)]
    for kv, bound, count in runs:
        worst = flips = steps = 0
        for row in rows[:count]:
            out = row["out_exact"]
            ids = row["prompt_ids"] + [o[0] for o in out]
            r = run(["kvasir", "score", "--model", model, "--ids", ",".join(map(str, ids)), "--kv-type", kv, "--context", "1024", "--json"], 300)
            assert r.returncode == 0, r.stderr
            lines = [json.loads(line) for line in r.stdout.splitlines()][len(row["prompt_ids"]) - 1:-1]
            assert len(lines) == len(out)
            for line, (i, logit, margin) in zip(lines, out):
                worst = max(worst, abs(line["logit"] - logit))
                flips += line["best"] != i and margin > 2 * bound
                steps += 1
        print(f"        KV {kv}: {steps} steps, logits within {worst:.4f}, {flips} flips")
        assert steps >= 48 and worst <= bound and flips == 0


def test_sample_model_keeps_its_exact_answer():
    exact_answer(smollm2(), "smollm2-135m-q4_1.golden.jsonl", [("f32", 0.01, 8), ("f16", 0.06, 8)])


def test_gemma3_keeps_its_exact_answer():
    """Without its long prompt: each position has 262,144 logits. The next test has that one."""
    exact_answer(gemma3(), "gemma-3-270m-q4_k_m.golden.jsonl", [("f32", 0.05, 5), ("f16", 0.1, 2)])


def test_gemma3_past_its_window():
    """The long prompt, and the golden's own tokens behind it: what `generate` says next, for some of them."""
    path = need(os.path.join(SHARED, "models", "real", "gemma-3-270m-q4_k_m.golden.jsonl"), "Gemma's golden")
    if os.environ.get("KVASIR_TEST_THREAD_SANITIZER") == "1":
        raise Skip("minutes under the thread sanitizer; small models show the same threads")
    rows = [row for row in map(json.loads, open(path)) if len(row["prompt_ids"]) > 512 + 64]
    assert len(rows) == 1
    out, compared, worst = rows[0]["out_exact"], 0, 0
    for k in (0, len(out) // 2, len(out) - 4):
        ids = rows[0]["prompt_ids"] + [o[0] for o in out[:k]]
        for got, want in zip(generate_alone(gemma3(), ids, 4, "--context", "1024", "--kv-type", "f32", "--ignore-eos", seconds=300), out[k:]):
            if got[0] != want[0]:
                assert want[2] <= 0.1, f"after {len(ids)} tokens: {got[0]}, not {want[0]}, with a margin of {want[2]}"
                break
            compared, worst = compared + 1, max(worst, abs(got[1] - want[1]))
    print(f"        {compared} of 12 tokens, logits within {worst:.4f}")
    assert compared >= 10 and worst <= 0.05


def mean_nll(model, golden):
    """Four contexts of 512 ids, each from empty memory, 511 terms each: mean negative log likelihood within 0.05 % of the exact one."""
    if os.environ.get("KVASIR_TEST_THREAD_SANITIZER") == "1":
        raise Skip("minutes under the thread sanitizer; small models show the same threads")
    with open(need(os.path.join(SHARED, "models", "real", golden), golden)) as f:
        rule = json.load(f)
    nll = terms = 0
    for ids in rule["contexts"]:
        r = run(["kvasir", "score", "--model", model, "--ids", ",".join(map(str, ids)), "--context", "512", "--json"], 300)
        assert r.returncode == 0, r.stderr
        last = json.loads(r.stdout.splitlines()[-1])
        nll, terms = nll + last["nll"], terms + last["tokens"]
    exact = sum(rule["nll_sums_exact"]) / terms
    print(f"        mean of {terms} terms {nll / terms:.6f}, exact {exact:.6f}, {abs(nll / terms / exact - 1) * 100:.4f} % away")
    assert terms == 2044 and abs(nll / terms - exact) <= 0.0005 * exact


def test_mean_nll_of_the_sample_model():
    mean_nll(smollm2(), "smollm2-135m-q4_1.ppl.json")


def test_mean_nll_of_gemma3():
    mean_nll(gemma3(), "gemma-3-270m-q4_k_m.ppl.json")


def test_bad_input_is_one_line_and_no_crash():
    model = need(STORIES, "stories260K")
    broken = tempfile.NamedTemporaryFile(suffix=".gguf")
    broken.write(open(model, "rb").read()[:100000])
    broken.flush()
    for args, code in ((["generate", "--model", "/nonexistent.gguf", "--prompt", "x"], 2), (["generate", "--model", broken.name, "--prompt", "x"], 1),
                       (["generate", "--model", model, "--ids", "1,x"], 2), (["generate", "--model", model, "--ids", "512"], 2),
                       (["generate", "--model", model, "--ids", "1", "-n", "200", "--context", "128"], 1), (["generate", "--nonsense"], 2),
                       (["generate", "--model", model, "--ids", "1", "--block-tokens", "7"], 2), (["score", "--model", model], 2),
                       (["score", "--model", model, "--ids", "1"], 2), (["score", "--model", model, "--text", "/nonexistent"], 2),
                       (["model", "pull", "../x"], 2), (["model", "info", broken.name], 1), (["nonsense"], 2), (["up", "--decode", "0"], 2)):
        r = run(["kvasir"] + args)
        assert r.returncode == code, f"{args}: exit code {r.returncode}, {r.stderr}"
        assert r.stdout == "" and r.stderr.count("\n") == 1 and r.stderr.startswith("kvasir: error: "), f"{args}: {r.stderr!r} {r.stdout!r}"


if __name__ == "__main__":
    main()
