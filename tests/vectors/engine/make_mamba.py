# make_mamba.py - a small random mamba model as FalconMamba has it and its greedy answers, in float64 by NumPy, from the definition: a time step
# for every channel, and the low form of the time step, B and C each normed, without weights, before they are used (ssm.dt_b_c_rms).
# Writes tiny-falcon-mamba.gguf and its golden. Run: python3 make_mamba.py (needs numpy and gguf).
# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

import exact

LAYERS, WIDTH, INNER, STATES, RANK, KERNEL = 3, 32, 48, 16, 6, 4
NAME, SEED = "tiny-falcon-mamba", 51


def weights():
    m = exact.Maker(SEED)
    m.put("token_embd.weight", (exact.VOCAB, WIDTH), 1.0)
    m.put("output.weight", (exact.VOCAB, WIDTH), 0.7)
    m.norm("output_norm.weight", WIDTH)
    for i in range(LAYERS):
        b = f"blk.{i}."
        m.norm(b + "attn_norm.weight", WIDTH)
        m.put(b + "ssm_in.weight", (2 * INNER, WIDTH), 0.5)
        m.put(b + "ssm_conv1d.weight", (INNER, KERNEL), 0.5, 0.1, np.float32)
        m.put(b + "ssm_conv1d.bias", INNER, 0.2, 0.0, np.float32)
        m.put(b + "ssm_x.weight", (RANK + 2 * STATES, INNER), 0.5)
        m.put(b + "ssm_dt.weight", (INNER, RANK), 0.5)
        m.put(b + "ssm_dt.bias", INNER, 1.0, -1.0, np.float32)
        m.put(b + "ssm_a", (INNER, STATES), 0.9, -1.0, np.float32)
        m.put(b + "ssm_d", INNER, 0.5, 1.0, np.float32)
        m.put(b + "ssm_out.weight", (WIDTH, INNER), 0.5)
    return m.w


class Sequence:
    def __init__(self, w, normed):
        self.w, self.normed, self.layers = w, normed, [exact.layer_of(w, i) for i in range(LAYERS)]
        self.past = [np.zeros((KERNEL, INNER)) for _ in self.layers]
        self.state = [np.zeros((INNER, STATES)) for _ in self.layers]

    def layer(self, i, w, h):
        x, z = np.split(w["ssm_in"] @ h, 2)
        self.past[i] = np.vstack([self.past[i][1:], x])
        x = exact.silu(np.sum(self.past[i] * w["ssm_conv1d"].T, axis=0) + w["ssm_conv1d.bias"])
        dt, b, c = np.split(w["ssm_x"] @ x, (RANK, RANK + STATES))
        if self.normed:
            dt, b, c = (exact.norm(v, 1.0) for v in (dt, b, c))
        dt = np.log1p(np.exp(w["ssm_dt"] @ dt + w["ssm_dt.bias"]))
        self.state[i] = self.state[i] * np.exp(dt[:, None] * w["ssm_a"]) + np.outer(dt * x, b)
        return w["ssm_out"] @ ((self.state[i] @ c + w["ssm_d"] * x) * exact.silu(z))

    def step(self, token):
        x = self.w["token_embd.weight"][token].copy()
        for i, w in enumerate(self.layers):
            x = x + self.layer(i, w, exact.norm(x, w["attn_norm"]))
        return self.w["output.weight"] @ exact.norm(x, self.w["output_norm.weight"])


def main():
    w = weights()
    exact.write_model(NAME, "mamba", {"block_count": LAYERS, "embedding_length": WIDTH, "feed_forward_length": 0, "attention.head_count": 0,
                                      "ssm.conv_kernel": KERNEL, "ssm.inner_size": INNER, "ssm.state_size": STATES,
                                      "ssm.time_step_rank": RANK, "ssm.dt_b_c_rms": True}, w)
    double = {name: data.astype(np.float64) for name, data in w.items()}
    lines = list(exact.answers(lambda: Sequence(double, True), SEED))
    margin = exact.write_answers(NAME, lines)
    plain = list(exact.answers(lambda: Sequence(double, False), SEED))
    other = sum([o[0] for o in a["out"]] != [o[0] for o in b["out"]] for a, b in zip(lines, plain))
    print(f"without the norms {other} of {len(lines)} answers differ")
    if margin < 0.002 or other < 3:
        sys.exit("choose another seed")


if __name__ == "__main__":
    main()
