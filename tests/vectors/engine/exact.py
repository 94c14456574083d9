# exact.py - what the float64 computations of this folder share: norm, softmax, gated feed-forward, mixture of experts, writing of a model file
# and of its answers. Everything is written down from the definitions, token by token, without pages, blocks or chunks, and with nothing of ours.
# A golden line: prompt_ids, out = 64 greedy tokens [id, logit, margin], logits0 = all logits after the prompt, rows = [[position, all logits]].
# SPDX-License-Identifier: Apache-2.0
import json
import os

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB, EPS = 64, 1e-6
PROMPTS, OUT, ROW_STRIDE = (0, 9, 47, 69), 64, 6


class Maker:
    """Random weights in the precision in which they are written, so that both sides start from the same numbers."""

    def __init__(self, seed):
        self.rng, self.w = np.random.default_rng(seed), {}

    def put(self, name, shape, reach, middle=0.0, dtype=np.float16):
        self.w[name] = (middle + self.rng.integers(-1000, 1001, shape) / 1000 * reach).astype(dtype)

    def norm(self, name, shape):
        self.put(name, shape, 0.2, 1.0, np.float32)


class Choices:
    """How near the chosen experts came to being others: what is nearer than rounding errors cannot be a golden."""

    def __init__(self):
        self.gap, self.count = np.inf, {}

    def near(self, values, k):
        v = np.sort(values)[::-1]
        if k < len(v):
            self.gap = min(self.gap, v[k - 1] - v[k])

    def tell(self, what, happened):
        self.count[what] = self.count.get(what, 0) + bool(happened)


def norm(x, weight):
    return x / np.sqrt(np.mean(x * x) + EPS) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    p = np.exp(x - x.max())
    return p / p.sum()


def feed_forward(x, gate, up, down):
    return down @ (silu(gate @ x) * (up @ x))


def mixture(x, w, experts, weights, shared):
    """The chosen experts' outputs times their weights, and the shared expert as it is."""
    y = sum(p * feed_forward(x, w["ffn_gate_exps"][e], w["ffn_up_exps"][e], w["ffn_down_exps"][e]) for e, p in zip(experts, weights))
    return y + feed_forward(x, w["ffn_gate_shexp"], w["ffn_up_shexp"], w["ffn_down_shexp"]) if shared else y


def best(values, k):
    return np.argsort(-values, kind="stable")[:k]


def layer_of(w, i):
    """The layer's tensors by their names without prefix; of a matrix also without .weight."""
    prefix = f"blk.{i}."
    return {n[len(prefix):].removesuffix(".weight"): t for n, t in w.items() if n.startswith(prefix)}


def answers(make_sequence, seed):
    """A line for each prompt; make_sequence() gives an object whose step(token) returns the logits after it."""
    rng = np.random.default_rng(seed)
    for n in PROMPTS:
        s, rows, out = make_sequence(), [], []
        prompt = [1] + [int(t) for t in rng.integers(3, VOCAB, n)]
        for pos, token in enumerate(prompt):
            logits = s.step(token)
            if n > 9 and pos % ROW_STRIDE == 0:
                rows.append([pos, [round(float(v), 6) for v in logits]])
        first = logits
        for _ in range(OUT):
            order = np.argsort(-logits)
            out.append([int(order[0]), round(float(logits[order[0]]), 6), round(float(logits[order[0]] - logits[order[1]]), 6)])
            logits = s.step(order[0])
        yield {"prompt": "", "prompt_ids": prompt, "out": out, "logits0": [round(float(v), 6) for v in first], "rows": rows}


def write_answers(name, lines):
    margin, ids = np.inf, set()
    with open(os.path.join(HERE, f"{name}.golden.jsonl"), "w") as f:
        for line in lines:
            margin, ids = min(margin, *(o[2] for o in line["out"])), ids | {o[0] for o in line["out"]}
            f.write(json.dumps(line, separators=(",", ":")) + "\n")
    print(f"{name}: smallest margin {margin}, {len(ids)} different ids, logits to {max(abs(v) for v in line['logits0']):.1f}")
    return margin


def write_model(name, arch, keys, w):
    g = gguf.GGUFWriter(os.path.join(HERE, f"{name}.gguf"), arch)
    for key, v in {"context_length": 512, "attention.layer_norm_rms_epsilon": EPS, "vocab_size": VOCAB, **keys}.items():
        key = f"{arch}.{key}"
        if isinstance(v, bool):
            g.add_bool(key, v)
        elif isinstance(v, str):
            g.add_string(key, v)
        elif isinstance(v, float):
            g.add_float32(key, v)
        elif isinstance(v, list):
            g.add_array(key, v)
        else:
            g.add_uint32(key, v)
    tokens = ["<unk>", "<s>", "</s>", "\u2581"] + [chr(c) for c in range(ord("A"), ord("A") + 60)]
    g.add_tokenizer_model("llama")
    g.add_token_list(tokens)
    g.add_token_scores([-float(i) for i in range(VOCAB)])
    g.add_token_types([2, 3, 3] + [1] * (VOCAB - 3))
    for tensor, data in w.items():
        g.add_tensor(tensor, data)
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()
