# make_biased.py - a small random llama model with everything optional that such a file may have: attn_qkv.bias for all three, biases of the
# output projection and of the feed-forward part, norms and biases in F16. Answers by the same float64 computation as make_smollm3.py, with the
# biases added and every layer rotated. Writes tiny-biased.gguf and tiny-biased.golden.jsonl beside itself.
# Run: python3 make_biased.py (needs numpy and gguf).
# SPDX-License-Identifier: Apache-2.0
import json
import os

import numpy as np

import make_smollm3 as m

m.LAYERS, m.rng = 2, np.random.default_rng(5)
Q, K = m.HEADS * m.HEAD, m.KV_HEADS * m.HEAD


def weights():
    w = m.weights()
    for i in range(m.LAYERS):
        for name, n in (("attn_qkv", Q + 2 * K), ("attn_output", m.WIDTH), ("ffn_gate", m.FF), ("ffn_up", m.FF), ("ffn_down", m.WIDTH)):
            w[f"blk.{i}.{name}.bias"] = (m.rng.integers(-1000, 1001, n) / 1000 * 0.5).astype(np.float16)
    return {name: data.astype(np.float16) if data.ndim == 1 and "attn_norm" not in name else data for name, data in w.items()}


class Biased(m.Sequence):
    def layer(self, i, x):
        w = {n: self.w[f"blk.{i}.{n}"] for n in ("attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_qkv.bias",
                                                  "attn_output.weight", "attn_output.bias", "ffn_norm.weight", "ffn_gate.weight",
                                                  "ffn_gate.bias", "ffn_up.weight", "ffn_up.bias", "ffn_down.weight", "ffn_down.bias")}
        h = m.norm(x, w["attn_norm.weight"])
        qkv = np.concatenate([w[f"attn_{n}.weight"] @ h for n in "qkv"]) + w["attn_qkv.bias"]
        q, k, v = (part.reshape(-1, m.HEAD) for part in np.split(qkv, (Q, Q + K)))
        q, k = m.rotate(q, self.pos), m.rotate(k, self.pos)
        self.keys[i].append(k)
        self.values[i].append(v)
        keys, values, heads = np.array(self.keys[i]), np.array(self.values[i]), []
        for n in range(m.HEADS):
            group = n // (m.HEADS // m.KV_HEADS)
            score = keys[:, group] @ q[n] / np.sqrt(m.HEAD)
            p = np.exp(score - score.max())
            heads.append(p / p.sum() @ values[:, group])
        x = x + w["attn_output.weight"] @ np.concatenate(heads) + w["attn_output.bias"]
        h = m.norm(x, w["ffn_norm.weight"])
        gate, up = w["ffn_gate.weight"] @ h + w["ffn_gate.bias"], w["ffn_up.weight"] @ h + w["ffn_up.bias"]
        return x + w["ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * up) + w["ffn_down.bias"]


def main():
    w = weights()
    m.write(os.path.join(m.HERE, "tiny-biased.gguf"), w, "llama")
    exact = {name: data.astype(np.float64) for name, data in w.items()}
    prompts = [[1]] + [[1] + [int(t) for t in m.rng.integers(3, m.VOCAB, n)] for n in (9, 47, 121)]
    with open(os.path.join(m.HERE, "tiny-biased.golden.jsonl"), "w") as f:
        for p in prompts:
            line = m.answer(exact, p, Biased)
            print(len(p), "smallest margin", min(o[2] for o in line["out"]), "different ids", len({o[0] for o in line["out"]}))
            f.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
