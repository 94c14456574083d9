# chaos_test.py - a random fault loop over a real cluster: known prompts are asked all the time while workers and the router are killed,
# stopped and continued, clients leave, pages run out, deadlines pass and failpoints fire. From a seed: KVASIR_CHAOS_SEED (0: a fresh one);
# KVASIR_CHAOS_SECONDS says how long the faults of all rounds last together.
#
# What must hold: no wrong token ever; every request ends, in time, exactly once, with a finish reason and [DONE], or an error event, or
# (only when the router died or the client left) a closed connection; afterwards no page is held or fenced and the page equation holds; no
# daemon ends but those that were killed; no sanitizer's report; descriptors do not grow; the cluster serves both placements again.
# SPDX-License-Identifier: Apache-2.0
import random
import threading

from kvasir_cluster import *

SECONDS = float(os.environ.get("KVASIR_CHAOS_SECONDS", "40"))
SEED = int(os.environ.get("KVASIR_CHAOS_SEED", "20261130")) or random.SystemRandom().randrange(1, 1 << 31)
CLIENTS = 6
END_SECONDS = 30 * SLOW  # a request may take so long, faults included
REPORTS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "runtime error:", "assertion", "Assertion")

ROUNDS = [  # name, prefill, decode, flags, failpoints, faults
    ("one of each, near", 1, 1, ["--transport", "auto", "--kv-memory", "16M"], "", "kill stop leave"),
    ("two of each, tcp, few pages", 2, 2, ["--transport", "tcp", "--kv-memory", "700K"], "", "kill stop leave"),
    ("two of each, near, failpoints", 2, 2, ["--transport", "auto", "--kv-memory", "4M", "--group-layers", 2],
     "kvt.drop_send=error@7;kvt.corrupt_page=error@11;prefill.after_post=kill@400;decode.after_token=kill@1500;decode.preempt=error@9;"
     "kvt.before_send=delay:30@20;rpc.drop_frame=error@900", "stop leave"),
    ("deadlines", 1, 2, ["--transport", "auto", "--kv-memory", "2M", "--deadline", "1"], "decode.after_token=delay:5@1+", "kill leave"),
    ("the router", 2, 1, ["--transport", "tcp", "--kv-memory", "8M"], "", "router router-stop kill leave"),
]


class Wrong(AssertionError):
    pass


class Known:
    """Prompts with the answers that one process alone gives: greedy ones, and sampled ones with a seed."""

    def __init__(self):
        self.cases = []
        for i, row in enumerate(golden()):
            self.cases.append((row["prompt_ids"], {"temperature": 0}, [entry[0] for entry in row["out"]]))
        for seed in (7, 1 << 40):
            ids = golden()[11]["prompt_ids"]
            out = generate_alone(STORIES, ids, 100, "--context", "512", "--kv-type", "f32", "--temperature", "0.8", "--seed", str(seed))
            self.cases.append((ids, {"temperature": 0.8, "seed": seed}, [token for token, _ in out]))


class Ledger:
    """What became of each request; the first thing that is wrong ends the round."""

    def __init__(self):
        self.lock, self.ends, self.wrong, self.slowest = threading.Lock(), {}, [], 0

    def end(self, how, took):
        with self.lock:
            self.ends[how] = self.ends.get(how, 0) + 1
            self.slowest = max(self.slowest, took)

    def fail(self, text):
        with self.lock:
            self.wrong.append(text)


class Client(threading.Thread):
    def __init__(self, round_, number, rng):
        super().__init__(daemon=True)
        self.round, self.rng, self.number = round_, rng, number

    def run(self):
        while not self.round.over.is_set() and not self.round.ledger.wrong:
            start = time.monotonic()
            try:
                how = self.one()
            except Wrong as e:
                self.round.ledger.fail(str(e))
                return
            except socket.timeout:
                self.round.ledger.fail(f"a request had no end within {END_SECONDS} s: {self.asked}")
                return
            except (OSError, http.client.HTTPException) as e:
                if self.round.router_lives(start):
                    self.round.ledger.fail(f"the connection broke though the router lives: {e!r}: {self.asked}")
                    return
                how = "router lost"
                time.sleep(0.05)
            if how[0] == "5":
                time.sleep(0.1)
            took = time.monotonic() - start
            if took > END_SECONDS:
                self.round.ledger.fail(f"a request took {took:.1f} s: {self.asked}")
            self.round.ledger.end(how, took)

    def one(self):
        rng = self.rng
        prompt, sampling, want = rng.choice(self.round.known.cases)
        n = rng.choice([1, 2, 3, rng.randrange(1, 40), rng.randrange(1, len(want) + 1)])
        body = {"model": "m", "prompt": prompt, "max_tokens": n, "return_token_ids": True, **sampling}
        place = rng.choice([None, "local", "remote", "remote"])
        if place:
            body["kvasir"] = {"placement": place}
        if rng.random() < 0.4:
            body["cache_salt"] = "shared"  # hits in the prefix cache
        self.asked = {**body, "prompt": f"{len(prompt)} ids"}
        want = want[:n]
        if rng.random() < 0.3:
            return self.whole(body, want)
        return self.streamed(body, want, leave=rng.random() < 0.3 and "leave" in self.round.faults)

    def whole(self, body, want):
        answer = self.round.cluster.request("POST", "/v1/completions", body, seconds=END_SECONDS)
        if answer.status == 200:
            self.check(answer.json()["choices"][0], [], want)
            return "answer"
        return self.refused(answer.status, answer.body)

    def refused(self, status, body):
        error = json.loads(body)["error"]
        if status not in (429, 500, 502, 503, 504) or not error["message"]:
            raise Wrong(f"HTTP {status} {body[:300]} to {self.asked}")
        return f"{status} {error['code']}"

    def check(self, choice, before, want):
        ids = before + (choice.get("token_ids") or [])
        if ids != want[:len(ids)]:
            raise Wrong(f"wrong tokens: {ids} instead of {want} for {self.asked}")
        if choice.get("finish_reason") and ids != want:
            raise Wrong(f"{len(ids)} tokens of {len(want)} and then {choice['finish_reason']}: {self.asked}")
        return ids

    def streamed(self, body, want, leave):
        start = time.monotonic()
        s = Stream(self.round.cluster, "/v1/completions", {**body, "stream": True}, END_SECONDS)
        try:
            if s.status != 200:
                return self.refused(s.status, s.response.read().decode())
            ids, finish, left_after = [], None, self.rng.randrange(0, len(want) + 1) if leave else None
            for event in s.events():
                if finish is not None and event.get("choices"):
                    raise Wrong(f"a choice after its finish reason: {event} for {self.asked}")
                if "error" in event:
                    rest = list(s.events())
                    if rest or s.done or not event["error"]["message"]:
                        raise Wrong(f"after an error event: {rest} done={s.done} for {self.asked}")
                    return f"error event {event['error']['code']}"
                choice = event["choices"][0]
                ids = self.check(choice, ids, want)
                finish = choice.get("finish_reason")
                if left_after is not None and len(ids) >= left_after:
                    return "left"
            if s.done and finish is None:
                raise Wrong(f"[DONE] without a finish reason for {self.asked}")
            if not s.done and self.round.router_lives(start):
                raise Wrong(f"the stream ended without a word after {len(ids)} tokens for {self.asked}")
            return "stream" if s.done else "router lost"
        finally:
            s.close(self.rng.random() < 0.5)


class Round:
    def __init__(self, known, spec, seconds, rng):
        self.known, self.rng, self.seconds = known, rng, seconds
        self.name, prefill, decode, flags, failpoints, self.faults = spec
        self.over, self.ledger, self.killed, self.router_died = threading.Event(), Ledger(), [], 0.0
        self.kills = re.findall(r"([a-z_.]+)=kill", failpoints)
        flags = ["--context", 512, "--kv-type", "f32", "--block-tokens", 16, "--chunk-tokens", rng.choice([7, 32, 128]), *flags]
        self.cluster = Cluster(STORIES, *flags, prefill=prefill, decode=decode, env={"KVASIR_FAILPOINTS_SET": failpoints})

    def router_lives(self, since):
        return self.router_died + 3 * SLOW < since

    def nemesis(self):
        until = time.monotonic() + self.seconds
        kinds = [k for k in self.faults.split() if k != "leave"]
        while time.monotonic() < until and not self.ledger.wrong:
            time.sleep(self.rng.uniform(0.2, 1.5))
            kind = self.rng.choice(kinds)
            name = "router" if kind.startswith("router") else self.rng.choice(self.cluster.names[1:])
            try:
                pid = self.cluster.pid(name)
            except (FileNotFoundError, ValueError):
                continue  # it is not back yet
            if kind.endswith("stop"):
                self.pause(pid, self.rng.choice([0.05, 0.5, 1.3, 2.6]))
                continue
            if kind == "router":
                self.router_died = time.monotonic() + 5 * SLOW  # until it is back with its workers
            with contextlib.suppress(ProcessLookupError):  # a failpoint may have been faster
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)

    @staticmethod
    def pause(pid, seconds):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def descriptors(self):
        out = {}
        for name in self.cluster.names:
            pid = self.cluster.pid(name)
            out[pid] = (name, len(os.listdir(f"/proc/{pid}/fd")))
        return out

    def serves(self):
        """Every worker is there, linked, and both placements give the right answer."""
        prompt, sampling, want = self.known.cases[11]
        if not all(os.path.exists(os.path.join(self.cluster.run_dir, f"{name}.pid")) for name in self.cluster.names):
            return False
        for place in ("local", "remote"):
            try:
                body = {"model": "m", "prompt": prompt, "max_tokens": 10, "return_token_ids": True, "kvasir": {"placement": place}, **sampling}
                answer = self.cluster.request("POST", "/v1/completions", body, seconds=END_SECONDS)
            except (OSError, http.client.HTTPException):
                return False
            if answer.status != 200 or (place == "remote" and answer.placement()["mode"] != "remote"):
                return False
            assert answer.choice()["token_ids"] == want[:10], answer.body
        status = self.cluster.status()
        return len(status["workers"]) == len(self.cluster.names) - 1

    def check_ends(self):
        """No daemon ended but by our hand or by a failpoint that says so."""
        for line in re.findall(r"kvasir: (\S+) ended \((\S+) (\d+)\)", self.cluster.stderr()):
            assert line[1:] == ("signal", "9"), f"{line[0]} ended by itself: {line[1]} {line[2]}"
        ends = len(re.findall(r" ended \(", self.cluster.stderr()))
        by_failpoint = sum(self.cluster.log(n).count(f'"failpoint fired" name={k} ') for n in self.cluster.names for k in self.kills)
        assert ends <= len(self.killed) + by_failpoint, f"{ends} daemons ended, {len(self.killed)} killed, {by_failpoint} by failpoint"
        for name in self.cluster.names:
            for text in REPORTS:
                assert text not in self.cluster.log(name), f"{name} reports: {self.cluster.log(name).split(text, 1)[1][:1500]}"

    def run(self):
        with self.cluster as c:
            wait_for("the cluster serves", 30 * SLOW, self.serves, 0.2)
            before = self.descriptors()
            clients = [Client(self, i, random.Random(self.rng.random())) for i in range(CLIENTS)]
            for t in clients:
                t.start()
            self.nemesis()
            self.over.set()
            for t in clients:
                t.join(END_SECONDS + 5)
                assert not t.is_alive(), f"a client has no end: {t.asked}"
            print(f"        {self.name}: {len(self.killed)} killed, slowest {self.ledger.slowest:.2f} s, "
                  + ", ".join(f"{k}: {v}" for k, v in sorted(self.ledger.ends.items())), flush=True)
            assert not self.ledger.wrong, self.ledger.wrong
            _, took = wait_for("the cluster serves again", 60 * SLOW, self.serves, 0.2)
            back = c.idle(10)
            print(f"        serves again after {took:.1f} s, pages back after {back:.2f} s", flush=True)
            self.check_ends()
            for pid, (name, n) in self.descriptors().items():
                if pid in before:
                    assert n <= before[pid][1] + 24, f"{name}: {n} descriptors, {before[pid][1]} before the faults"


def test_random_faults():
    need(STORIES, "stories260K")
    known = Known()
    rng = random.Random(SEED)
    print(f"        KVASIR_CHAOS_SEED={SEED} KVASIR_CHAOS_SECONDS={SECONDS:g}")
    share, done = max(6.0, min(20.0, SECONDS / len(ROUNDS))), 0.0
    i = 0
    while done < SECONDS:
        Round(known, ROUNDS[i % len(ROUNDS)], share, rng).run()
        done += share
        i += 1


def test_nothing_is_left_when_up_is_killed():
    """SIGKILL of kvasir up: the daemons die with it; the same run directory serves a new cluster."""
    with Cluster(need(STORIES, "stories260K"), "--context", 512) as c:
        pids = [c.pid(n) for n in c.names]
        c.up.kill()
        c.up.wait(10)
        wait_for("the daemons are gone", 10 * SLOW, lambda: not any(alive(p) for p in pids))
        args = [os.path.join(BIN, "kvasir"), "up", "--model", STORIES, "--listen", "127.0.0.1:0", "--run-dir", c.run_dir, "--threads", "1"]
        again = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=c.err, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        try:
            said_until_ready(again, START_SECONDS, c.stderr)
            again.terminate()
            assert again.wait(20 * SLOW) == 0
            left = [n for n in os.listdir(c.run_dir) if n.endswith((".sock", ".pid"))]
            assert not left, f"left in the run directory: {left}"
        finally:
            again.kill()
            again.wait(10)
            again.stdout.close()
        c.stop = lambda: c.kill_up()


if __name__ == "__main__":
    main()
