# bugs_test.py - faults that users of other servers have reported, each as a test against the real router with one prefill and one decode worker.
# What is sent and what is right is told with each case; local and remote placement are held to the same answers.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *

PLACES = ("local", "remote")
PROMPT = [1, 403, 407, 261, 378]  # "Once upon a time": any ids do, the answer is looked up first


def cluster():
    return Cluster(need(STORIES, "stories260K"), "--context", 512)


def both(c, body):
    """The same request whole and as a stream: text, ids, finish_reason and usage must agree; returns the whole answer."""
    body = {"model": "m", "prompt": PROMPT, "temperature": 0, "return_token_ids": True, **body}
    answer = c.request("POST", "/v1/completions", body)
    assert answer.status == 200, answer.body
    whole = answer.json()
    s = c.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    events = list(s.events())
    s.close()
    assert s.status == 200 and s.done
    usage = [e["usage"] for e in events]
    assert all(u is None for u in usage[:-1]) and usage[-1] == whole["usage"], f"{usage[-1]} is not {whole['usage']}"
    assert events[-1]["choices"] == []
    for i, want in enumerate(whole["choices"]):
        parts = [x for e in events for x in e["choices"] if x["index"] == i]
        assert "".join(x["text"] for x in parts) == want["text"]
        assert [t for x in parts for t in x["token_ids"]] == want["token_ids"]
        assert [x["finish_reason"] for x in parts if x["finish_reason"]] == [want["finish_reason"]]
        assert parts[-1]["finish_reason"], "the last chunk of a choice carries its finish_reason"
    return whole


def test_a_stop_string_across_tokens_does_not_leak():
    with cluster() as c:
        text = both(c, {"max_tokens": 40})["choices"][0]["text"]
        for at in (7, 20, 33):
            stop = text[at:at + 9]
            got = both(c, {"max_tokens": 40, "stop": [stop]})["choices"][0]
            assert got["text"] == text[:text.index(stop)] and got["finish_reason"] == "stop"
            near = both(c, {"max_tokens": 40, "stop": [stop + "\x01"]})["choices"][0]
            assert near["text"] == text and near["finish_reason"] == "length"
        c.idle()


def test_the_last_piece_of_a_stream_is_not_lost():
    with cluster() as c:
        text = both(c, {"max_tokens": 64})["choices"][0]["text"]
        stops = [text[30:33], text[60:61], "\n"]
        for n in range(1, 65, 3):
            for stop in stops:
                both(c, {"max_tokens": n, "stop": [stop]})
        c.idle()


def test_exactly_as_many_tokens_as_asked_for():
    with cluster() as c:
        alone = generate_alone(need(STORIES, "stories260K"), PROMPT, 3, "--context", "512")
        for place in PLACES:
            for n in (1, 2, 3):
                answer = both(c, {"max_tokens": n, "kvasir": {"placement": place}})
                choice = answer["choices"][0]
                assert choice["token_ids"] == [i for i, _ in alone[:n]] and choice["finish_reason"] == "length"
                assert answer["usage"]["completion_tokens"] == n
            # a stop string that the first token completes
            first = both(c, {"max_tokens": 1})["choices"][0]["text"]
            got = both(c, {"max_tokens": 9, "stop": first, "kvasir": {"placement": place}})
            assert got["choices"][0]["text"] == "" and got["usage"]["completion_tokens"] == 1
        c.idle()


def test_no_limit_given_means_no_limit_sent():
    with cluster() as c:
        for place in PLACES:
            answer = c.request("POST", "/v1/completions", {"model": "m", "prompt": PROMPT, "temperature": 0, "kvasir": {"placement": place}})
            assert answer.status == 200 and answer.placement()["mode"] == place, answer.body
            usage = answer.json()["usage"]
            assert usage["completion_tokens"] > 100, usage
        c.idle()


def test_usage_counts_every_choice():
    with cluster() as c:
        for place in PLACES:
            answer = both(c, {"max_tokens": 8, "n": 3, "temperature": 1.0, "seed": 11, "kvasir": {"placement": place}})
            assert len(answer["choices"]) == 3
            made = sum(len(x["token_ids"]) for x in answer["choices"])
            assert answer["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": made, "total_tokens": len(PROMPT) + made,
                                       "prompt_tokens_details": {"cached_tokens": answer["usage"]["prompt_tokens_details"]["cached_tokens"]}}
            assert made <= 24
            texts = {x["text"] for x in answer["choices"]}
            assert len(texts) > 1, "choices draw their own numbers"
        s = c.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 3})
        assert all("usage" not in e for e in s.events()), "no usage when it was not asked for"
        s.close()
        c.idle()


def test_bad_bodies_leave_the_connection_usable():
    bodies = [b"", b"{", b"[]", b"[" * 10000, b'{"a":' * 5000, b'{"model":"m","prompt":"\xc4\xe3"}', b'{"model":"m","prompt":"\\ud800"}',
              b'{"model":"m","prompt":"x","temperature":1e999}', b'{"model":"m","prompt":"x","n":0}', b'{"model":"m","prompt":"x","max_tokens":"7"}']
    with cluster() as c:
        conn = http.client.HTTPConnection(c.host, c.port, timeout=REQUEST_SECONDS)
        for body in bodies:
            conn.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            r = conn.getresponse()
            error = json.loads(r.read().decode("utf-8"))["error"]
            assert r.status == 400 and error["message"], (body[:60], r.status, error)
            if b'"n":0' in body or b"max_tokens" in body or b"temperature" in body:
                assert error["param"] in ("n", "max_tokens", "temperature"), error
        conn.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": PROMPT, "max_tokens": 2}))
        assert conn.getresponse().status == 200
        conn.close()


def test_a_prompt_is_never_cut():
    with cluster() as c:
        for n in (512, 513, 2000):
            answer = c.complete([5] * n, 8)
            assert answer.status == 400, answer.status
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded" and str(n) in error["message"] and "512" in error["message"], error
        for place in PLACES:
            answer = c.complete([1] + [403] * 510, 8, place)
            choice = answer.choice()
            assert len(choice["token_ids"]) == 1 and choice["finish_reason"] == "length" and len(choice["prompt_token_ids"]) == 511
        c.idle()


if __name__ == "__main__":
    main()
