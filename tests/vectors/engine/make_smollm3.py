# make_smollm3.py - a small random smollm3 model and its greedy answers, computed in float64 by NumPy, straight from the definition and with
# nothing of ours: every token attends by itself over all earlier ones, without pages, blocks or chunks. Writes tiny-smollm3.gguf (matrices in
# F16, so that both sides start from the same numbers) and tiny-smollm3.golden.jsonl beside itself, in the form of ../shared/models' goldens:
# prompt_ids, out = [id, its logit, margin to the second best], logits0 = all logits after the prompt.
# Run: python3 make_smollm3.py (needs numpy and gguf).
# SPDX-License-Identifier: Apache-2.0
import json
import os

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FF, VOCAB, BASE, EPS = 5, 32, 4, 2, 8, 32, 64, 10000.0, 1e-6
rng = np.random.default_rng(33)


def matrix(rows, cols, reach):
    return (rng.integers(-1000, 1001, (rows, cols)) / 1000 * reach).astype(np.float16)


def vector(n):
    return (1 + rng.integers(-1000, 1001, n) / 5000).astype(np.float32)


def weights():
    w = {"token_embd.weight": matrix(VOCAB, WIDTH, 1.0), "output_norm.weight": vector(WIDTH)}
    for i in range(LAYERS):
        shapes = {"attn_q": (HEADS * HEAD, WIDTH, 0.7), "attn_k": (KV_HEADS * HEAD, WIDTH, 0.7), "attn_v": (KV_HEADS * HEAD, WIDTH, 0.4),
                  "attn_output": (WIDTH, HEADS * HEAD, 0.4), "ffn_gate": (FF, WIDTH, 0.3), "ffn_up": (FF, WIDTH, 0.3),
                  "ffn_down": (WIDTH, FF, 0.3)}
        for name, (rows, cols, reach) in shapes.items():
            w[f"blk.{i}.{name}.weight"] = matrix(rows, cols, reach)
        for name in ("attn_norm", "ffn_norm"):
            w[f"blk.{i}.{name}.weight"] = vector(WIDTH)
    return w


def norm(x, weight):
    return x / np.sqrt(np.mean(x * x) + EPS) * weight


def rotate(x, pos):
    """Pairs (2i, 2i + 1) of every head turn by pos * base^(-2i / head)."""
    angle = pos * BASE ** (-np.arange(0, HEAD, 2) / HEAD)
    even, odd = x[:, 0::2], x[:, 1::2]
    out = np.empty_like(x)
    out[:, 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[:, 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


class Sequence:
    def __init__(self, w):
        self.w, self.keys, self.values, self.pos = w, [[] for _ in range(LAYERS)], [[] for _ in range(LAYERS)], 0

    def layer(self, i, x):
        w = {n: self.w[f"blk.{i}.{n}.weight"] for n in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate",
                                                       "ffn_up", "ffn_down")}
        h = norm(x, w["attn_norm"])
        q, k, v = ((w[n] @ h).reshape(-1, HEAD) for n in ("attn_q", "attn_k", "attn_v"))
        if (i + 1) % 4 != 0:  # every fourth layer has no positions
            q, k = rotate(q, self.pos), rotate(k, self.pos)
        self.keys[i].append(k)
        self.values[i].append(v)
        keys, values, heads = np.array(self.keys[i]), np.array(self.values[i]), []
        for n in range(HEADS):
            group = n // (HEADS // KV_HEADS)
            score = keys[:, group] @ q[n] / np.sqrt(HEAD)
            p = np.exp(score - score.max())
            heads.append(p / p.sum() @ values[:, group])
        x = x + w["attn_output"] @ np.concatenate(heads)
        h = norm(x, w["ffn_norm"])
        gate = w["ffn_gate"] @ h
        return x + w["ffn_down"] @ (gate / (1 + np.exp(-gate)) * (w["ffn_up"] @ h))

    def step(self, token):
        x = self.w["token_embd.weight"][token].copy()
        for i in range(LAYERS):
            x = self.layer(i, x)
        self.pos += 1
        return self.w["token_embd.weight"] @ norm(x, self.w["output_norm.weight"])


def answer(w, prompt, sequence=Sequence):
    s, out = sequence(w), []
    for token in prompt:
        logits = s.step(token)
    first = logits
    for _ in range(64):
        order = np.argsort(-logits)
        out.append([int(order[0]), round(float(logits[order[0]]), 6), round(float(logits[order[0]] - logits[order[1]]), 6)])
        logits = s.step(order[0])
    return {"prompt": "", "prompt_ids": [int(t) for t in prompt], "out": out, "logits0": [round(float(v), 6) for v in first]}


def write(path, w, arch="smollm3"):
    g = gguf.GGUFWriter(path, arch)
    g.add_block_count(LAYERS)
    g.add_context_length(512)
    g.add_embedding_length(WIDTH)
    g.add_feed_forward_length(FF)
    g.add_head_count(HEADS)
    g.add_head_count_kv(KV_HEADS)
    g.add_layer_norm_rms_eps(EPS)
    g.add_rope_dimension_count(HEAD)
    g.add_rope_freq_base(BASE)
    g.add_vocab_size(VOCAB)
    tokens = ["<unk>", "<s>", "</s>", "\u2581"] + [chr(ord("a") + i) for i in range(26)] + [chr(ord("A") + i) for i in range(26)]
    tokens += [str(i) for i in range(VOCAB - len(tokens))]
    g.add_tokenizer_model("llama")
    g.add_token_list(tokens)
    g.add_token_scores([-float(i) for i in range(VOCAB)])
    g.add_token_types([2, 3, 3] + [1] * (VOCAB - 3))
    for name, data in w.items():
        g.add_tensor(name, data)
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()


def main():
    w = weights()
    write(os.path.join(HERE, "tiny-smollm3.gguf"), w)
    exact = {name: data.astype(np.float64) for name, data in w.items()}
    prompts = [[1]] + [[1] + [int(t) for t in rng.integers(3, VOCAB, n)] for n in (9, 47, 121)]
    with open(os.path.join(HERE, "tiny-smollm3.golden.jsonl"), "w") as f:
        for p in prompts:
            line = answer(exact, p)
            print(len(p), "smallest margin", min(o[2] for o in line["out"]), "different ids", len({o[0] for o in line["out"]}))
            f.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
