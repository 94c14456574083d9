# resume_test.py - a decode worker is killed, or drains, in the middle of many answers: each goes on at the other one, and is the answer that
# it would have been: ids, logits, text and counts. The companion runs with resuming switched off and must not see that.
# Which path was taken is asserted from the router's metrics and logs, never from the answers alone.
# SPDX-License-Identifier: Apache-2.0
import threading

from kvasir_cluster import *

SHAPE = ["--context", 512, "--kv-type", "f32", "--block-tokens", 16, "--group-layers", 1, "--chunk-tokens", 7]
SLOWLY = {"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:10@1+"}
ALONE = {"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:40@1+"}  # one stream that must last until something else has come about
LENGTH = 90


class Reader(threading.Thread):
    """Reads one stream to its end; what came is in rows (per choice), finish, usage and error."""

    def __init__(self, cluster, body):
        super().__init__(daemon=True)
        self.cluster, self.stream = cluster, None
        self.body = {"return_token_ids": True, "stream_options": {"include_usage": True}, "kvasir": {"logits": True}, **body}
        self.rows, self.text, self.finish, self.times = {}, {}, {}, []
        self.usage = self.error = self.failure = None
        self.start()

    def run(self):
        try:
            self.stream = self.cluster.stream("/v1/completions", self.body)  # here: its head comes with the first token
            for event in self.stream.events():
                if "error" in event:
                    self.error = event["error"]
                    continue
                self.usage = event.get("usage") or self.usage
                for choice in event["choices"]:
                    i = choice["index"]
                    got = list(zip(choice["token_ids"], choice["kvasir"]["logits"]))
                    self.rows.setdefault(i, []).extend(got)
                    self.text[i] = self.text.get(i, "") + choice["text"]
                    self.finish[i] = choice["finish_reason"]
                    self.times.append(time.monotonic())
        except BaseException as e:  # told by outcome()
            self.failure = e
        finally:
            if self.stream:
                self.stream.close()

    def count(self):
        return min((len(r) for r in self.rows.values()), default=0)

    def outcome(self):
        self.join(REQUEST_SECONDS)
        assert not self.is_alive(), "a stream that does not end"
        assert self.failure is None, self.failure
        return {"rows": self.rows, "text": self.text, "finish": self.finish, "usage": self.usage, "error": self.error, "done": self.stream.done}

    def pause(self):
        """The longest time between two events."""
        return max((b - a for a, b in zip(self.times, self.times[1:])), default=0)


def bodies():
    """Eight greedy ones, whose answers `kvasir generate` knows too, and eight sampled ones with seeds; short and long prompts."""
    need(STORIES, "stories260K")
    rows = golden()
    greedy = [{"prompt": rows[i]["prompt_ids"], "max_tokens": LENGTH, "ignore_eos": True} for i in (0, 1, 2, 3, 5, 8, 11, 13)]
    sampled = [{**b, "temperature": 0.9, "top_p": 0.95, "seed": 1000 + i} for i, b in enumerate(greedy)]
    return greedy, sampled


def undisturbed(cluster, asked):
    return [r.outcome() for r in [Reader(cluster, b) for b in asked]]


def counted(outcome):
    """Usage without cached_tokens: what was found in a cache depends on which worker ran before, not on the request."""
    return {k: v for k, v in (outcome["usage"] or {}).items() if k != "prompt_tokens_details"}


def equal(got, want, what):
    assert got["error"] is None, f"{what}: {got['error']}"
    assert got["done"], f"{what}: no [DONE]"
    for i in want["rows"]:
        same_as(got["rows"].get(i, []), want["rows"][i], f"{what}, choice {i}")
    for key in ("text", "finish"):
        assert got[key] == want[key], f"{what}: {key} is {got[key]}, not {want[key]}"
    assert counted(got) == counted(want), f"{what}: usage is {got['usage']}, not {want['usage']}"


def lives(cluster, name):
    """How often the router has taken it into use."""
    return cluster.log("router").count(f'msg="worker ready" worker={name} ')


def kill(cluster, name):
    """kill -9; returns what waits for its next life."""
    before = lives(cluster, name)
    cluster.kill(name)
    return lambda: wait_for(f"{name} is back", 30 * SLOW, lambda: lives(cluster, name) > before)


def kill_amid(cluster, readers, name, tokens=5):
    """Kills a daemon once every stream has some tokens and none has come to its end."""
    wait_for("all streams run", REQUEST_SECONDS, lambda: all(r.count() >= tokens for r in readers), 0.005)
    back = kill(cluster, name)
    seen = [r.count() for r in readers]
    assert max(seen) < LENGTH, f"too late to kill in mid-stream: {seen}"
    return seen, back


def test_streams_go_on_at_the_other_decode_worker():
    greedy, sampled = bodies()
    alone = [generate_alone(STORIES, b["prompt"], LENGTH, "--context", "512", "--kv-type", "f32", "--ignore-eos") for b in greedy[:2]]
    with Cluster(STORIES, *SHAPE, decode=2, env=SLOWLY) as c:
        for what, asked in (("greedy", greedy), ("sampled", sampled)):
            want = undisturbed(c, asked)
            if what == "greedy":
                for got, known in zip(want, alone):
                    same_as(got["rows"][0], known, "undisturbed, against the engine alone")
            assert len({str(w["text"]) for w in want}) > 4, "the prompts do not tell anything apart"
            before = c.metrics().sum("kvasir_resumed_total")
            readers = [Reader(c, b) for b in asked]
            at, back = kill_amid(c, readers, "decode-0")
            outcomes = [r.outcome() for r in readers]
            for i, (got, w) in enumerate(zip(outcomes, want)):
                equal(got, w, f"{what} stream {i}")
            resumed = c.metrics().sum("kvasir_resumed_total") - before
            assert resumed > 0, "nothing was resumed: the kill hit nobody"
            print(f"        {what}: {resumed:.0f} of {len(asked)} resumed after {min(at)} to {max(at)} tokens, longest pause "
                  f"{max(r.pause() for r in readers):.2f} s")
            back()
        c.idle(20)


def test_choices_and_stop_strings_move_together():
    """n = 3 with a stop string: finished choices stay as they are, the others move; usage counts each token once."""
    greedy, _ = bodies()
    body = {"prompt": greedy[6]["prompt"], "max_tokens": LENGTH, "ignore_eos": True, "n": 3, "temperature": 0.9, "seed": 7, "stop": [" the", "."]}
    with Cluster(STORIES, *SHAPE, decode=2, env=SLOWLY) as c:
        plain = {k: v for k, v in body.items() if k != "stop"}
        for name, asked in (("no stop string", plain), ("stop strings", body)):
            [want] = undisturbed(c, [asked])
            for _ in range(2):
                reader = Reader(c, asked)
                wait_for("some tokens", REQUEST_SECONDS, lambda: reader.rows, 0.002)
                back = kill(c, reader.stream.placement()["decode"])
                equal(reader.outcome(), want, name)
                back()
        resumed = c.metrics().sum("kvasir_resumed_total")
        print(f"        {resumed:.0f} of 4 resumed")
        assert resumed >= 3
        c.idle(20)


def test_without_resuming_they_end_with_an_error():
    """The companion: the same kill, and the streams of that worker end with an error event and no [DONE]."""
    greedy, _ = bodies()
    with Cluster(STORIES, *SHAPE, decode=2, env={**SLOWLY, "KVASIR_ROUTER_RESUME": "false"}) as c:
        readers = [Reader(c, b) for b in greedy]
        kill_amid(c, readers, "decode-0")
        outcomes = [r.outcome() for r in readers]
        broken = [o for o in outcomes if o["error"]]
        print(f"        {len(broken)} of {len(outcomes)} ended with an error")
        assert broken and len(broken) < len(outcomes), "all or none: the kill or the placement did not do what it should"
        assert all(o["error"]["message"] and not o["done"] for o in broken)
        assert c.metrics().sum("kvasir_resumed_total") == 0



def test_a_drained_worker_hands_its_streams_over():
    """One of two decode workers is told to drain amid eight streams: they move and stay the same; it ends with 0 and is not started again."""
    greedy, sampled = bodies()
    asked = greedy[:4] + sampled[:4]
    with Cluster(STORIES, *SHAPE, decode=2, env=SLOWLY) as c:
        want = undisturbed(c, asked)
        readers = [Reader(c, b) for b in asked]
        wait_for("all streams run", REQUEST_SECONDS, lambda: all(r.count() >= 5 for r in readers), 0.005)
        pid = c.pid("decode-0")
        said = run(["kvasir", "drain", "decode-0", "--url", c.url])
        assert said.returncode == 0, said.stderr
        for i, (r, w) in enumerate(zip(readers, want)):
            equal(r.outcome(), w, f"stream {i}")
        _, took = wait_for("it ends", 30 * SLOW, lambda: not alive(pid))
        m = c.metrics()
        print(f"        {m.sum('kvasir_moved_total'):.0f} moved, {m.sum('kvasir_resumed_total'):.0f} handed back; pauses up to "
              f"{max(r.pause() for r in readers):.2f} s; gone {took:.2f} s after the last stream")
        assert m.sum("kvasir_moved_total") > 0, "nothing moved: it served nobody"
        wait_for("kvasir up says so", 5 * SLOW, lambda: "decode-0 has drained" in c.stderr())
        assert "drained" in c.log("decode-0")
        for b, w in zip(asked[:2], want):
            equal(Reader(c, b).outcome(), w, "afterwards")
        assert not os.path.exists(os.path.join(c.run_dir, "decode-0.pid")), "started again"
        said = run(["kvasir", "drain", "decode-0", "--url", c.url])
        assert said.returncode == 1 and "decode-0" in said.stderr, said.stderr
        c.idle(20)


def test_the_only_decode_worker_finishes_what_it_has():
    """Nowhere to move to: what runs comes to its end there; new requests are refused. Over its time, it is handed back: an error event."""
    greedy, _ = bodies()
    with Cluster(STORIES, *SHAPE, env=ALONE) as c:
        [want] = undisturbed(c, greedy[:1])
        reader = Reader(c, greedy[0])
        wait_for("it runs", REQUEST_SECONDS, lambda: reader.count() >= 5, 0.005)
        pid = c.kill("decode-0", signal.SIGTERM)
        _, took = wait_for("new requests are refused", 5 * SLOW, lambda: c.complete([1, 403], 3).status == 503, 0.01)
        assert reader.is_alive(), "the stream ended before the refusal: nothing was shown"
        equal(reader.outcome(), want, "while draining")
        wait_for("it ends", 30 * SLOW, lambda: not alive(pid))
        assert c.metrics().sum("kvasir_moved_total") == 0
    with Cluster(STORIES, *SHAPE, env={"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:30@1+", "KVASIR_WORKER_DRAIN": "0.2"}) as c:
        reader = Reader(c, greedy[0])
        wait_for("it runs", REQUEST_SECONDS, lambda: reader.count() >= 5, 0.005)
        pid = c.kill("decode-0", signal.SIGTERM)
        got = reader.outcome()
        assert got["error"] and got["error"]["code"] == "self_stopping" and not got["done"], got["error"]
        wait_for("it ends", 30 * SLOW, lambda: not alive(pid))
        assert "handing back" in c.log("decode-0")


def test_up_drains_on_term_and_stops_on_interrupt():
    greedy, _ = bodies()
    for sig in (signal.SIGTERM, signal.SIGINT):
        c = Cluster(STORIES, *SHAPE, env=ALONE)
        try:
            [want] = undisturbed(c, greedy[:1])
            reader = Reader(c, greedy[0])
            wait_for("it runs", REQUEST_SECONDS, lambda: reader.count() >= 5, 0.005)
            start = time.monotonic()
            c.up.send_signal(sig)
            got = reader.outcome()
            assert c.up.wait(20 * SLOW) == 0
            print(f"        {sig.name}: {len(got['rows'][0])} of {LENGTH} tokens, all ended after {time.monotonic() - start:.2f} s")
            if sig == signal.SIGTERM:
                equal(got, want, "drained")
            else:
                assert got["error"] and not got["done"]
            assert not [p for p in c.seen_pids if alive(p)]
        finally:
            c.kill_up()


if __name__ == "__main__":
    main()
