# same_test.py - one property over every path that a request can take: the tokens and logits are those of a cold run, bit for bit, whether its KV
# was computed here or there, cached, partly cached, fetched from another worker, or the sequence resumed after a death, moved with its pages
# (its worker drained or took another role), or ran where the roles were switched. Greedy and sampled; several models.
#
# An answer alone proves nothing about its path: each one is asserted from counters and headers, and the companions without a prefix cache must
# fail the proofs of those that need one. A model whose cache is not blocks of all its layers (windows, states) is found only up to where one of
# its snapshots stands: the prompt's last whole block.
# Seven models walk all paths, the other architectures the four most different ones; all are preempted, too.
# KVASIR_SAME_ALL=1: all paths with every model of ../shared/models/random (some ten minutes).
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import glob

from archs_test import file_of
from kvasir_cluster import *
from placement_test import Delta, must_fail
from resume_test import Reader

BLOCK, PROMPT, ANSWER = 16, 69, 56  # four blocks and five tokens
STREAM = 180  # tokens of what is moved or killed on its way: it must not be over before
SHAPE = ["--context", 256, "--kv-type", "f32", "--block-tokens", BLOCK, "--group-layers", 1, "--chunk-tokens", 7]
SLOWLY = {"KVASIR_FAILPOINTS_SET": "decode.after_token=delay:8@1+"}
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 77}
OTHER = {"decode-0": "decode-1", "decode-1": "decode-0"}
RANDOM = os.path.join(SHARED, "models", "random")
LONG = ["tiny-llama-yarn", "tiny-wide-q4_k", "tiny-gemma3", "tiny-mamba", "tiny-deepseek2", "tiny-falcon-h1"]  # blocks, windows, states, latents, hybrids
SHORT = ["tiny-mixtral", "tiny-qwen2", "tiny-qwen2moe", "tiny-qwen3", "tiny-qwen3moe", "tiny-gpt-oss", "tiny-phi3", "tiny-granite", "tiny-mamba2",
         "tiny-granitehybrid", "tiny-smollm3"]  # the other architectures
SNAPSHOTS = ("tiny-gemma3", "tiny-gpt-oss", "tiny-mamba", "tiny-mamba2", "tiny-granitehybrid", "tiny-falcon-h1")


def with_stories(names):
    """(name, path) each. All of them must run: a refusal ends the test."""
    return [("stories260K", need(STORIES, "stories260K"))] + [(n, file_of(n)) for n in names]


def every_random_model():
    return [os.path.basename(path)[:-len(".gguf")] for path in sorted(glob.glob(os.path.join(RANDOM, "*.gguf")))]


class Same:
    """A cluster of one prefill and two decode workers, what it must answer, and the paths."""

    def __init__(self, c, name, path, kv="f32", sampled=True):
        self.c, self.snapshots = c, name in SNAPSHOTS
        words = 60 if name == "tiny-smollm3" else 500
        self.ids = [1] + [3 + (7 * i * i + 31 * i) % words for i in range(PROMPT - 1)]
        self.want = {"greedy": generate_alone(path, self.ids, STREAM, "--context", "256", "--kv-type", kv, "--ignore-eos")}
        if sampled:
            self.want["sampled"] = rows_of(self.ask("sampled", "first", "local", n=STREAM))
            assert self.want["sampled"] != self.want["greedy"]

    def body(self, how, salt, **more):
        return {"prompt": self.ids, "max_tokens": ANSWER, "ignore_eos": True, "cache_salt": f"{salt}-{how}", **(SAMPLED if how == "sampled" else {}), **more}

    def ask(self, how, salt, placement, prompt=None, fetch=None, n=ANSWER):
        body = {"model": "m", "temperature": 0, "return_token_ids": True, **self.body(how, salt, max_tokens=n),
                "kvasir": {"logits": True, "placement": placement, **({"fetch": fetch} if fetch else {})}}
        return self.c.request("POST", "/v1/completions", {**body, "prompt": prompt or self.ids})

    def asked(self, what, salt, placement, **more):
        """Both ways; answers, and how the counters changed."""
        before = self.c.metrics()
        answers = {how: self.ask(how, salt, placement, **more) for how in self.want}
        for how, answer in answers.items():
            same_as(rows_of(answer), self.want[how][:ANSWER], f"{what}, {how}")
        return answers, Delta(before, self.c.metrics())

    def role(self, worker, role):
        said = run(["kvasir", "role", worker, role, "--url", self.c.url])
        assert said.returncode == 0, said.stderr

    def computed(self, d, **labels):
        return d("kvasir_prefill_tokens_total", **labels)

    # the paths

    def cold(self):
        for placement in ("local", "remote"):
            answers, d = self.asked(f"cold, {placement}", f"cold-{placement}", placement)
            for answer in answers.values():
                p = answer.placement()
                assert p["mode"] == placement and p["cached"] == "0", p
                assert (p["prefill"] != p["decode"]) == (placement == "remote"), p
            where = {"worker": "prefill-0"} if placement == "remote" else {}
            assert self.computed(d, **where) == len(self.want) * PROMPT == self.computed(d), "tokens computed"
            assert (d("kvasir_kv_transfer_pages_total") > 0) == (placement == "remote"), "pages that travelled"

    def owners(self, salt, prompt=None):
        """Who decoded what is asked for the first time now."""
        return {how: self.ask(how, salt, "local", prompt=prompt).placement()["decode"] for how in self.want}

    @contextlib.contextmanager
    def only(self, worker):
        """Nobody else decodes: where a request goes is no matter of cost then."""
        self.role(OTHER[worker], "prefill")
        yield
        self.role(OTHER[worker], "decode")

    def found_again(self, what, owners, salt, least, most):
        """least: with snapshots exactly that many."""
        for how, owner in owners.items():
            with self.only(owner):
                before = self.c.metrics()
                answer = self.ask(how, salt, "local")
                d = Delta(before, self.c.metrics())
            same_as(rows_of(answer), self.want[how][:ANSWER], f"{what}, {how}")
            found = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert least <= found <= (least if self.snapshots else most), f"{what}: {found} tokens found"
            assert d("kvasir_prefix_cached_tokens_total", worker=owner) == found and self.computed(d, worker=owner) == PROMPT - found
            assert self.computed(d) == PROMPT - found and d("kvasir_kv_transfer_pages_total") == 0

    def cached(self):
        self.found_again("cached", self.owners("cached"), "cached", 4 * BLOCK, PROMPT - 1)

    def partly(self):
        """53 tokens in common with a prompt of 59 that was there before: three blocks, its last whole ones, and the head of a fourth."""
        other = self.ids[:53] + [4 + (5 * i) % 97 for i in range(6)]
        self.found_again("partly cached", self.owners("partly", other), "partly", 3 * BLOCK, 53)

    def fetched(self):
        """Its owner decodes no more, so the other decode worker fetches what it has."""
        for how, owner in self.owners("fetched").items():
            other = OTHER[owner]
            with self.only(other):
                before = self.c.metrics()
                answer = self.ask(how, "fetched", "local", fetch=owner)
                d = Delta(before, self.c.metrics())
            same_as(rows_of(answer), self.want[how][:ANSWER], f"fetched, {how}")
            assert answer.placement()["decode"] == other, answer.placement()
            assert d("kvasir_fetched_tokens_total", worker=other) == 4 * BLOCK, "tokens fetched"
            assert d("kvasir_prefix_cached_tokens_total", worker=owner) == 4 * BLOCK, "tokens found by their owner"
            assert self.computed(d) == PROMPT - 4 * BLOCK, "tokens computed"

    def streams(self, salt, tokens=4):
        """Both ways at once, under way; the worker that has at least one of them, and the other one."""
        before = self.c.metrics()
        readers = {how: Reader(self.c, self.body(how, salt, max_tokens=STREAM, kvasir={"logits": True, "placement": "local"})) for how in self.want}
        wait_for("both streams run", REQUEST_SECONDS, lambda: all(r.count() >= tokens for r in readers.values()), 0.002)
        at = {how: r.stream.placement()["decode"] for how, r in readers.items()}
        leaver = at["greedy"]
        other = OTHER[leaver]
        return before, readers, leaver, other, list(at.values()).count(leaver)

    def finish(self, what, readers):
        for how, r in readers.items():
            got = r.outcome()
            assert got["error"] is None and got["done"], got["error"]
            same_as(got["rows"][0], self.want[how], f"{what}, {how}")

    def resumed(self):
        before, readers, leaver, other, count = self.streams("resumed")
        was = self.c.kill(leaver)
        self.finish("resumed", readers)
        d = Delta(before, self.c.metrics())
        assert d("kvasir_resumed_total") == count, f"{d('kvasir_resumed_total')} of {count} resumed"
        assert d("kvasir_moved_total") == 0

        def back():
            with contextlib.suppress(FileNotFoundError, ValueError):
                w = {w["id"]: w for w in self.c.status()["workers"] if w["state"] == "ready"}
                return self.c.pid(leaver) != was and leaver in w and {p["id"] for p in w[leaver]["peers"]} == {"prefill-0", other}
        wait_for(f"{leaver} is back", 60 * SLOW, back)

    def check_moved(self, d, other, count):
        """Its pages went along: all complete blocks were fetched, and only the last one, which was not, was computed anew."""
        assert d("kvasir_moved_total") == count, f"{d('kvasir_moved_total')} of {count} moved"
        fetched, again = d("kvasir_fetched_tokens_total", worker=other), self.computed(d, worker=other) - (2 - count) * PROMPT
        print(f"        {count} moved: {fetched:.0f} tokens fetched, {again:.0f} computed again")
        assert fetched % BLOCK == 0 and fetched >= count * 4 * BLOCK, f"{fetched} tokens fetched"  # of states: up to the prompt's last snapshot
        assert d("kvasir_kv_transfer_pages_total", worker=other) > 0
        if not self.snapshots:
            assert count <= again <= count * BLOCK, f"{again} tokens computed again"

    def moved(self):
        before, readers, leaver, other, count = self.streams("moved")
        self.role(leaver, "prefill")
        self.finish("moved by another role", readers)
        self.check_moved(Delta(before, self.c.metrics()), other, count)
        self.role(leaver, "decode")

    def switched(self):
        """The prefill worker decodes and both decode workers prefill; their caches stay."""
        self.role("prefill-0", "decode")
        self.role("decode-0", "prefill")
        self.role("decode-1", "prefill")
        answers, d = self.asked("roles switched", "switched", "remote")
        for answer in answers.values():
            p = answer.placement()
            assert p["mode"] == "remote" and p["decode"] == "prefill-0" and p["prefill"] in ("decode-0", "decode-1"), p
        assert self.computed(d, worker="prefill-0") == 0 and self.computed(d) == 2 * PROMPT
        self.role("decode-0", "both")
        self.role("decode-1", "decode")
        self.role("prefill-0", "prefill")
        self.role("decode-0", "decode")
        owners = {how: answer.placement()["prefill"] for how, answer in answers.items()}
        self.found_again("roles switched back", owners, "switched", 4 * BLOCK, PROMPT - 1)  # what they read in the other role

    def drained(self):
        before, readers, leaver, other, count = self.streams("drained", 20)
        pid = self.c.pid(leaver)
        said = run(["kvasir", "drain", leaver, "--url", self.c.url])
        assert said.returncode == 0, said.stderr
        self.finish("moved by a drain", readers)
        wait_for(f"{leaver} ends", 60 * SLOW, lambda: not alive(pid))
        self.check_moved(Delta(before, self.c.metrics()), other, count)
        assert re.search(r'msg="drained" calls=0 kept=0', self.c.log(leaver)), "it did not wait until its pages were fetched"

    def preempted(self):
        """After every other token the newest sequence gives its pages back and is computed again."""
        answers, d = self.asked("preempted", "preempted", "local")
        assert d("kvasir_preemptions_total") > 0


def walk(name, path, paths, sampled=True):
    with Cluster(path, *SHAPE, decode=2, env=SLOWLY) as c:
        s = Same(c, name, path, sampled=sampled)
        for each in paths:
            start = time.monotonic()
            getattr(s, each)()
            print(f"        {name}: {each} ({time.monotonic() - start:.1f} s)", flush=True)
        c.idle(20)


def all_paths(name, path):
    walk(name, path, ("cold", "cached", "partly", "fetched", "resumed", "moved", "switched", "drained"))


def four_paths(name, path):
    """Greedy only: what a sampler does is no matter of the architecture."""
    walk(name, path, ("cold", "cached", "fetched", "resumed"), sampled=False)


def side_by_side(run_one, of, width=3):
    """Clusters of several models at once: each mostly waits for its own delays."""
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        for done in [pool.submit(run_one, *each) for each in of]:
            done.result()


def test_the_same_by_every_path():
    side_by_side(all_paths, with_stories(every_random_model() if os.environ.get("KVASIR_SAME_ALL") else LONG))


def test_the_same_in_the_other_architectures():
    if os.environ.get("KVASIR_SAME_ALL"):
        raise Skip("all of them walked all paths")
    side_by_side(four_paths, with_stories(SHORT)[1:], 5)


def in_8_bits(name, path):
    shape = ["q8_0" if word == "f32" else word for word in SHAPE]
    with Cluster(path, *shape, decode=2, env=SLOWLY) as c:
        s = Same(c, name, path, "q8_0")
        for walk in (s.cold, s.cached, s.partly, s.fetched):
            walk()
        c.idle(20)


def test_the_same_with_kv_in_8_bits():
    """Codes and scales travel, are copied in part and are kept: full, window and latent pages; a state stays f32."""
    names = ("tiny-gemma3", "tiny-deepseek2", "tiny-granitehybrid")
    side_by_side(in_8_bits, with_stories(names))


def test_the_same_when_the_prefill_worker_dies():
    """After its third page: one fallback, the same attempt, and the tokens that landed are not computed again."""
    need(STORIES, "stories260K")
    with Cluster(STORIES, *SHAPE, env={"KVASIR_FAILPOINTS_SET": "prefill.after_post=kill@13"}) as c:
        s = Same(c, "stories260K", STORIES)
        before = c.metrics()
        answer = s.ask("greedy", "prefill-dies", "remote")
        same_as(rows_of(answer), s.want["greedy"][:ANSWER], "the prefill worker died")
        d = Delta(before, c.metrics())
        assert "failpoint fired" in c.log("prefill-0"), "it did not die"
        assert d("kvasir_prefill_fallbacks_total") == 1 and d("kvasir_replaced_total") == d("kvasir_resumed_total") == 0
        again = s.computed(d, worker="decode-0")
        print(f"        {again:.0f} of {PROMPT} tokens computed by the decode worker")
        assert 0 < again < PROMPT, f"{again} tokens computed"
        c.idle(20)


def preempted(name, path):
    with Cluster(path, *SHAPE, env={"KVASIR_FAILPOINTS_SET": "decode.preempt=error@20+"}) as c:
        Same(c, name, path).preempted()
        c.idle(20)


def test_the_same_when_preempted():
    side_by_side(preempted, with_stories(LONG + SHORT), 5)


def without_a_cache(name, path):
    with Cluster(path, *SHAPE, "--no-prefix-cache", decode=2, env=SLOWLY) as c:
        s = Same(c, name, path)
        s.cold()
        for each in (s.cached, s.partly, s.fetched, s.moved):
            must_fail(each)
            for worker in ("decode-0", "decode-1"):
                s.role(worker, "decode")
        c.idle(20)


def test_without_a_cache_the_proofs_fail():
    """The companions: the same tokens, and none of the paths that need a cache was taken."""
    side_by_side(without_a_cache, with_stories(["tiny-falcon-h1"]))


if __name__ == "__main__":
    main()
