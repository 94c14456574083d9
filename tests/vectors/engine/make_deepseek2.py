# make_deepseek2.py - small random deepseek2 models and their greedy answers, in float64 by NumPy, from the definition of multi-head latent
# attention: keys and values of every head are built from the latent and kept (ours never builds them; it takes the queries to the latent).
#   tiny-deepseek2-lite  V2 Lite: queries in one step, softmax over all experts, weights not normalised but scaled, two shared experts
#   tiny-deepseek2-v3    V3: queries in two steps, logistic gate with a bias for the choice, groups of experts, weights normalised and scaled
#   tiny-deepseek2-yarn  V2's stretched context: YaRN's ramp, the square of (1 + yarn_log_multiplier * ln factor) in the scale of the scores
#   tiny-deepseek2-kvb   the weights of -v3 as older files have them: one attn_kv_b, keys named for heads of their full size; the answers of -v3
# Run: python3 make_deepseek2.py (needs numpy and gguf).
# SPDX-License-Identifier: Apache-2.0
import numpy as np

import exact

WIDTH, HEADS, NOPE, ROPE, VALUE, RANK, FF, BASE = 32, 3, 12, 8, 16, 32, 24, 10000.0
LITE = dict(name="tiny-deepseek2-lite", seed=12, layers=3, q_rank=0, experts=8, used=3, ff=8, shared=2, scale=1.75)
V3 = dict(name="tiny-deepseek2-v3", seed=25, layers=3, q_rank=16, experts=12, used=4, ff=8, shared=1, scale=2.5, groups=4, groups_used=2)
YARN = dict(name="tiny-deepseek2-yarn", seed=31, layers=2, q_rank=0, experts=4, used=2, ff=16, shared=1, scale=1.0,
            factor=8.0, original=32, multiplier=0.0707)


def weights(c):
    m = exact.Maker(c["seed"])
    m.put("token_embd.weight", (exact.VOCAB, WIDTH), 1.0)
    m.put("output.weight", (exact.VOCAB, WIDTH), 0.7)
    m.norm("output_norm.weight", WIDTH)
    for i in range(c["layers"]):
        b, q = f"blk.{i}.", HEADS * (NOPE + ROPE)
        m.norm(b + "attn_norm.weight", WIDTH)
        if c["q_rank"]:
            m.put(b + "attn_q_a.weight", (c["q_rank"], WIDTH), 0.5)
            m.norm(b + "attn_q_a_norm.weight", c["q_rank"])
            m.put(b + "attn_q_b.weight", (q, c["q_rank"]), 0.8)
        else:
            m.put(b + "attn_q.weight", (q, WIDTH), 0.6)
        m.put(b + "attn_kv_a_mqa.weight", (RANK + ROPE, WIDTH), 0.5)
        m.norm(b + "attn_kv_a_norm.weight", RANK)
        m.put(b + "attn_kv_b.weight", (HEADS * (NOPE + VALUE), RANK), 0.5)
        m.put(b + "attn_output.weight", (WIDTH, HEADS * VALUE), 0.5)
        m.norm(b + "ffn_norm.weight", WIDTH)
        if i == 0:
            wide = (("ffn_gate", (FF, WIDTH)), ("ffn_up", (FF, WIDTH)), ("ffn_down", (WIDTH, FF)))
        else:
            n, ff, all_ff = c["experts"], c["ff"], c["ff"] * c["shared"]
            wide = (("ffn_gate_inp", (n, WIDTH)), ("ffn_gate_exps", (n, ff, WIDTH)), ("ffn_up_exps", (n, ff, WIDTH)),
                    ("ffn_down_exps", (n, WIDTH, ff)), ("ffn_gate_shexp", (all_ff, WIDTH)), ("ffn_up_shexp", (all_ff, WIDTH)),
                    ("ffn_down_shexp", (WIDTH, all_ff)))
            if "groups" in c:
                m.put(b + "exp_probs_b.bias", n, 0.3, 0.0, np.float32)
        for name, shape in wide:
            m.put(f"{b}{name}.weight", shape, 0.5)
    return m.w


def frequencies(c):
    """Of each pair of rotated numbers; YaRN: fast pairs turn as trained, slow ones as much slower as the context is longer, a ramp between."""
    pair = np.arange(ROPE // 2)
    plain = BASE ** (-2.0 * pair / ROPE)
    if "factor" not in c:
        return plain
    turns = [ROPE * np.log(c["original"] / (2 * np.pi * beta)) / (2 * np.log(BASE)) for beta in (32.0, 1.0)]
    low, high = max(0, np.floor(turns[0])), min(ROPE - 1, np.ceil(turns[1]))
    trained = 1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)
    return trained * plain + (1 - trained) * plain / c["factor"]


def choose(c, w, value, log):
    """Experts and weights by the gate's values."""
    if "groups" not in c:
        p = exact.softmax(value)
        chosen = exact.best(p, c["used"])
        log.near(value, c["used"])
        return chosen, p[chosen] * c["scale"]
    p = 1 / (1 + np.exp(-value))
    biased, groups = p + w["exp_probs_b.bias"], c["groups"]
    parts = biased.reshape(groups, -1)
    two = np.sort(parts, axis=1)[:, -2:].sum(axis=1)
    kept = exact.best(two, c["groups_used"])
    masked = np.where(np.isin(np.arange(groups), kept)[:, None], parts, -np.inf).ravel()
    chosen = exact.best(masked, c["used"])
    log.near(two, c["groups_used"])
    log.near(masked[np.isfinite(masked)], c["used"])
    log.tell("groups matter", set(chosen) != set(exact.best(biased, c["used"])))
    log.tell("two best of a group, not one", set(kept) != set(exact.best(parts.max(axis=1), c["groups_used"])))
    log.tell("bias matters", set(chosen) != set(exact.best(np.where(np.isfinite(masked), p, -1), c["used"])))
    return chosen, p[chosen] / p[chosen].sum() * c["scale"]


class Sequence:
    def __init__(self, c, w, log):
        self.c, self.w, self.log, self.pos = c, w, log, 0
        self.layers = [exact.layer_of(w, i) for i in range(c["layers"])]
        self.keys, self.values = [[] for _ in self.layers], [[] for _ in self.layers]
        self.frequency = frequencies(c)
        self.scale = (1 + c.get("multiplier", 0) * np.log(c.get("factor", 1))) ** 2 / np.sqrt(NOPE + ROPE)

    def rotate(self, x):
        """Pairs (2i, 2i + 1)."""
        angle, out = self.pos * self.frequency, np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * np.cos(angle) - x[..., 1::2] * np.sin(angle)
        out[..., 1::2] = x[..., 0::2] * np.sin(angle) + x[..., 1::2] * np.cos(angle)
        return out

    def attention(self, i, w, h):
        q = w["attn_q_b"] @ exact.norm(w["attn_q_a"] @ h, w["attn_q_a_norm"]) if self.c["q_rank"] else w["attn_q"] @ h
        q = q.reshape(HEADS, NOPE + ROPE)
        q = np.concatenate([q[:, :NOPE], self.rotate(q[:, NOPE:])], axis=1)
        low = w["attn_kv_a_mqa"] @ h
        kv = (w["attn_kv_b"] @ exact.norm(low[:RANK], w["attn_kv_a_norm"])).reshape(HEADS, NOPE + VALUE)
        shared = np.broadcast_to(self.rotate(low[RANK:]), (HEADS, ROPE))
        self.keys[i].append(np.concatenate([kv[:, :NOPE], shared], axis=1))
        self.values[i].append(kv[:, NOPE:])
        keys, values = np.array(self.keys[i]), np.array(self.values[i])
        heads = [exact.softmax(keys[:, n] @ q[n] * self.scale) @ values[:, n] for n in range(HEADS)]
        return w["attn_output"] @ np.concatenate(heads)

    def step(self, token):
        x = self.w["token_embd.weight"][token].copy()
        for i, w in enumerate(self.layers):
            x = x + self.attention(i, w, exact.norm(x, w["attn_norm"]))
            h = exact.norm(x, w["ffn_norm"])
            if i == 0:
                x = x + exact.feed_forward(h, w["ffn_gate"], w["ffn_up"], w["ffn_down"])
            else:
                x = x + exact.mixture(h, w, *choose(self.c, w, w["ffn_gate_inp"] @ h, self.log), True)
        self.pos += 1
        return self.w["output.weight"] @ exact.norm(x, self.w["output_norm.weight"])


def apart(w):
    """attn_kv_b as newer files have it: [heads][RANK][NOPE] and [heads][VALUE][RANK]."""
    out = {}
    for name, t in w.items():
        if "attn_kv_b" not in name:
            out[name] = t
            continue
        t = t.reshape(HEADS, NOPE + VALUE, RANK)
        out[name.replace("kv_b", "k_b")] = np.ascontiguousarray(t[:, :NOPE].transpose(0, 2, 1))
        out[name.replace("kv_b", "v_b")] = np.ascontiguousarray(t[:, NOPE:])
    return out


def keys(c, older=False):
    k = {"block_count": c["layers"], "embedding_length": WIDTH, "feed_forward_length": FF, "attention.head_count": HEADS,
         "attention.kv_lora_rank": RANK, "rope.dimension_count": ROPE, "rope.freq_base": BASE, "leading_dense_block_count": 1,
         "expert_count": c["experts"], "expert_used_count": c["used"], "expert_feed_forward_length": c["ff"],
         "expert_shared_count": c["shared"], "expert_weights_scale": float(c["scale"])}
    if older:
        k |= {"attention.head_count_kv": HEADS, "attention.key_length": NOPE + ROPE, "attention.value_length": VALUE}
    else:
        k |= {"attention.head_count_kv": 1, "attention.key_length": RANK + ROPE, "attention.value_length": RANK,
              "attention.key_length_mla": NOPE + ROPE, "attention.value_length_mla": VALUE}
    if c["q_rank"]:
        k["attention.q_lora_rank"] = c["q_rank"]
    if "groups" in c:
        k |= {"expert_group_count": c["groups"], "expert_group_used_count": c["groups_used"], "expert_gating_func": 2,
              "expert_weights_norm": True}
    if "factor" in c:
        k |= {"rope.scaling.type": "yarn", "rope.scaling.factor": c["factor"], "rope.scaling.original_context_length": c["original"],
              "rope.scaling.yarn_log_multiplier": c["multiplier"]}
    return k


def main():
    for c in (LITE, V3, YARN):
        w, log = weights(c), exact.Choices()
        exact.write_model(c["name"], "deepseek2", keys(c), apart(w))
        if c is V3:
            exact.write_model("tiny-deepseek2-kvb", "deepseek2", keys(c, older=True), w)
        full = {name: t.astype(np.float64) for name, t in w.items()}
        margin = exact.write_answers(c["name"], exact.answers(lambda: Sequence(c, full, log), c["seed"]))
        print("    nearest choice", log.gap, log.count)
        assert margin > 0.0005 and log.gap > 1e-5 and all(log.count.values()), "another seed"


if __name__ == "__main__":
    main()
