# turns_test.py - the turns of a chat through /v1/chat/completions: each one's prompt is rendered anew by the model's template, the model's own
# answer tokenized again as text, and still the whole blocks of what was read and written before are found. cached_tokens is computed
# beforehand from the turn before: its prompt and its answer but for the last token, whose KV nobody has computed, in whole blocks.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *

BLOCK = 4
TURNS = ("What is the capital of France?", "And what is the capital of Italy?", "Which of the two is larger?")


def talk(c, salts):
    """Three turns; salts: one a turn. What each one gave: (prompt tokens, cached tokens, answer ids, logits, text)."""
    messages, out = [], []
    for question, salt in zip(TURNS, salts):
        messages.append({"role": "user", "content": question})
        answer = c.request("POST", "/v1/chat/completions",
                           {"model": "m", "messages": messages, "max_tokens": 80, "temperature": 0, "return_token_ids": True, "cache_salt": salt,
                            "kvasir": {"logits": True}})
        choice, usage = answer.choice(), answer.json()["usage"]
        assert choice["finish_reason"] == "stop", choice
        messages.append({"role": "assistant", "content": choice["message"]["content"]})
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert answer.placement()["cached"] == str(cached) and usage["completion_tokens"] == len(choice["token_ids"])
        out.append((usage["prompt_tokens"], cached, choice["token_ids"], choice["kvasir"]["logits"], choice["message"]["content"]))
    return out


def expected(turns):
    """Prompt tokens that each turn finds."""
    return [0] + [(prompt + len(ids) - 1) // BLOCK * BLOCK for prompt, _, ids, _, _ in turns[:-1]]


def test_three_turns_of_a_chat():
    with Cluster(smollm2(), "--block-tokens", BLOCK, "--context", 1024) as c:
        warm, cold = talk(c, ["a", "a", "a"]), talk(c, ["b", "c", "d"])
        for turn, question in zip(warm, TURNS):
            print(f"        {turn[0]} prompt tokens, {turn[1]} of them found: {question} {turn[4]!r}")
        assert [t[1] for t in warm] == expected(warm), f"{[t[1] for t in warm]} prompt tokens found, not {expected(warm)}"
        assert all(found > before[0] for found, before in zip(expected(warm)[1:], warm)), "what is found does not reach into the answers"
        assert [t[1] for t in cold] == [0, 0, 0], "another salt: nothing is found"
        assert [t[2:] for t in warm] == [t[2:] for t in cold], "found and computed KV give different answers"
        c.idle()
    with Cluster(smollm2(), "--block-tokens", BLOCK, "--context", 1024, "--no-prefix-cache") as c:
        assert [t[1] for t in talk(c, ["a", "a", "a"])] == [0, 0, 0] != expected(warm)


if __name__ == "__main__":
    main()
