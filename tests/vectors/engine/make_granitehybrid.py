# make_granitehybrid.py - a small random granitehybrid model with experts and its greedy answers, in float64 by NumPy, from the definitions:
# Mamba 2 (one state a head, gate before the norm by group), attention that rotates, then a mixture (softmax over all experts, weights
# divided by their sum) and a shared expert in every layer; granite's four numbers. Writes tiny-granitehybrid-moe.gguf and its golden.
# Run: python3 make_granitehybrid.py (needs numpy and gguf).
# SPDX-License-Identifier: Apache-2.0
import numpy as np

import exact

WIDTH, HEADS, KV_HEADS, HEAD, BASE = 32, 4, [0, 2, 0], 8, 10000.0
INNER, STATES, STATE_HEADS, GROUPS, KERNEL = 48, 8, 6, 2, 4
EXPERTS, USED, FF, SHARED = 8, 3, 8, 20
EMBEDDING, RESIDUAL, ATTENTION, LOGIT, SEED = 2.0, 0.55, 0.21, 1.5, 41
CONV = INNER + 2 * GROUPS * STATES


def weights():
    m = exact.Maker(SEED)
    m.put("token_embd.weight", (exact.VOCAB, WIDTH), 1.0)
    m.put("output.weight", (exact.VOCAB, WIDTH), 1.0)
    m.norm("output_norm.weight", WIDTH)
    for i, kv_heads in enumerate(KV_HEADS):
        b = f"blk.{i}."
        m.norm(b + "attn_norm.weight", WIDTH)
        if kv_heads:
            for name, rows in (("q", HEADS * HEAD), ("k", kv_heads * HEAD), ("v", kv_heads * HEAD)):
                m.put(f"{b}attn_{name}.weight", (rows, WIDTH), 0.7)
            m.put(b + "attn_output.weight", (WIDTH, HEADS * HEAD), 0.7)
        else:
            m.put(b + "ssm_in.weight", (INNER + CONV + STATE_HEADS, WIDTH), 0.5)
            m.put(b + "ssm_conv1d.weight", (CONV, KERNEL), 0.5, 0.1, np.float32)
            m.put(b + "ssm_conv1d.bias", CONV, 0.2, 0.0, np.float32)
            m.put(b + "ssm_dt.bias", STATE_HEADS, 1.0, -1.0, np.float32)
            m.put(b + "ssm_a", (STATE_HEADS, 1), 0.9, -1.0, np.float32)
            m.put(b + "ssm_d", (STATE_HEADS, 1), 0.5, 1.0, np.float32)
            m.norm(b + "ssm_norm.weight", (GROUPS, INNER // GROUPS))
            m.put(b + "ssm_out.weight", (WIDTH, INNER), 0.5)
        m.norm(b + "ffn_norm.weight", WIDTH)
        for name, shape in (("ffn_gate_inp", (EXPERTS, WIDTH)), ("ffn_gate_exps", (EXPERTS, FF, WIDTH)), ("ffn_up_exps", (EXPERTS, FF, WIDTH)),
                            ("ffn_down_exps", (EXPERTS, WIDTH, FF)), ("ffn_gate_shexp", (SHARED, WIDTH)), ("ffn_up_shexp", (SHARED, WIDTH)),
                            ("ffn_down_shexp", (WIDTH, SHARED))):
            m.put(f"{b}{name}.weight", shape, 0.5)
    return m.w


class Mamba2:
    """A layer's memory: the last inputs of the convolution, and a matrix of numbers a head."""

    def __init__(self):
        self.past, self.state = np.zeros((KERNEL, CONV)), np.zeros((STATE_HEADS, INNER // STATE_HEADS, STATES))

    def __call__(self, w, h):
        z, xbc, dt = np.split(w["ssm_in"] @ h, (INNER, INNER + CONV))
        self.past = np.vstack([self.past[1:], xbc])
        xbc = exact.silu(np.sum(self.past * w["ssm_conv1d"].T, axis=0) + w["ssm_conv1d.bias"])
        x, b, c = np.split(xbc, (INNER, INNER + GROUPS * STATES))
        x, b, c = x.reshape(STATE_HEADS, -1), b.reshape(GROUPS, STATES), c.reshape(GROUPS, STATES)
        dt, y = np.log1p(np.exp(dt + w["ssm_dt.bias"])), np.empty_like(x)
        for n in range(STATE_HEADS):
            g = n // (STATE_HEADS // GROUPS)
            self.state[n] = self.state[n] * np.exp(dt[n] * w["ssm_a"][n, 0]) + np.outer(x[n] * dt[n], b[g])
            y[n] = self.state[n] @ c[g] + w["ssm_d"][n, 0] * x[n]
        y = (y.ravel() * exact.silu(z)).reshape(GROUPS, -1)
        return w["ssm_out"] @ np.concatenate([exact.norm(part, scale) for part, scale in zip(y, w["ssm_norm"])])


class Attention:
    def __init__(self, kv_heads):
        self.kv_heads, self.keys, self.values = kv_heads, [], []

    def __call__(self, w, h):
        q, k, v = ((w[f"attn_{n}"] @ h).reshape(-1, HEAD) for n in "qkv")
        q, k = rotate(q, len(self.keys)), rotate(k, len(self.keys))
        self.keys.append(k)
        self.values.append(v)
        keys, values, heads = np.array(self.keys), np.array(self.values), []
        for n in range(HEADS):
            group = n // (HEADS // self.kv_heads)
            heads.append(exact.softmax(keys[:, group] @ q[n] * ATTENTION) @ values[:, group])
        return w["attn_output"] @ np.concatenate(heads)


def rotate(x, pos):
    """Pairs (2i, 2i + 1)."""
    angle, out = pos * BASE ** (-np.arange(0, HEAD, 2) / HEAD), np.empty_like(x)
    out[:, 0::2] = x[:, 0::2] * np.cos(angle) - x[:, 1::2] * np.sin(angle)
    out[:, 1::2] = x[:, 0::2] * np.sin(angle) + x[:, 1::2] * np.cos(angle)
    return out


class Sequence:
    def __init__(self, w, log):
        self.w, self.log = w, log
        self.layers = [(exact.layer_of(w, i), Attention(n) if n else Mamba2()) for i, n in enumerate(KV_HEADS)]

    def step(self, token):
        x = self.w["token_embd.weight"][token] * EMBEDDING
        for w, mix in self.layers:
            x = x + RESIDUAL * mix(w, exact.norm(x, w["attn_norm"]))
            h = exact.norm(x, w["ffn_norm"])
            value = w["ffn_gate_inp"] @ h
            self.log.near(value, USED)
            p, chosen = exact.softmax(value), exact.best(value, USED)
            x = x + RESIDUAL * exact.mixture(h, w, chosen, p[chosen] / p[chosen].sum(), True)
        return self.w["output.weight"] @ exact.norm(x, self.w["output_norm.weight"]) / LOGIT


def main():
    w, log = weights(), exact.Choices()
    keys = {"block_count": len(KV_HEADS), "embedding_length": WIDTH, "feed_forward_length": FF, "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS, "rope.dimension_count": HEAD, "rope.freq_base": BASE, "expert_count": EXPERTS,
            "expert_used_count": USED, "expert_shared_feed_forward_length": SHARED, "embedding_scale": EMBEDDING,
            "residual_scale": RESIDUAL, "attention.scale": ATTENTION, "logit_scale": LOGIT, "ssm.conv_kernel": KERNEL,
            "ssm.inner_size": INNER, "ssm.state_size": STATES, "ssm.time_step_rank": STATE_HEADS, "ssm.group_count": GROUPS}
    exact.write_model("tiny-granitehybrid-moe", "granitehybrid", keys, w)
    full = {name: t.astype(np.float64) for name, t in w.items()}
    margin = exact.write_answers("tiny-granitehybrid-moe", exact.answers(lambda: Sequence(full, log), SEED))
    print("    nearest choice", log.gap)
    assert margin > 0.0005 and log.gap > 1e-5, "another seed"


if __name__ == "__main__":
    main()
