# deaths_test.py - one daemon of several dies at a named moment (as links come up, with pages on their way, with pages landing), reaped or not:
# what the others do for each other is not disturbed. Every death is asserted to have happened where it was meant to.
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import threading

from faults_test import ByHand, long_row, want_for
from kvasir_cluster import *
from placement_test import Delta

os.environ["KVASIR_KV_STALL"] = "600"  # links are made slow here, and are to be waited for
SHAPE = ["--context", 512, "--kv-type", "f32", "--block-tokens", 16, "--group-layers", 1, "--chunk-tokens", 7]
PAGES = 2 * STORIES_LAYERS  # 29 tokens, blocks of 16, a group a layer
BYTES = PAGES * 16 * STORIES_KV * 4


def fired(h, name, point):
    return h.log(name).count(f"name={point} ")


def remote_again(h, row, want):
    def served():
        answer = h.complete(row["prompt_ids"], len(want), "remote")
        if answer.status != 200:  # the worker is not known yet
            return False
        same_as(rows_of(answer), want, "after the deaths")
        return answer.placement()["mode"] == "remote" and answer.placement()["bytes"] == str(BYTES)
    _, took = wait_for("remote prefill works again", 60 * SLOW, served, 0.1)
    return took


def test_deaths_while_links_come_up():
    """Either end is killed as it connects, then as the link is up: the other one lives, serves, and links with the next life."""
    row = long_row()
    want = want_for(row, 12)
    for transport in ("shm", "tcp"):
        with ByHand(shape=[*SHAPE, "--transport", transport]) as h:
            for name, other in (("prefill-0", "decode-0"), ("decode-0", "prefill-0")):
                h.process[name].kill()
                h.reap(name)
                for point in ("kvt.wireup", "worker.after_link"):
                    before = fired(h, name, point)
                    h.start(name, f"{point}=kill")
                    h.dies(name)
                    assert fired(h, name, point) == before + 1, f"{name} did not die at {point}"
                    h.reap(name)
                    assert alive(h.pid(other)) and alive(h.pid("router"))
                    if name == "prefill-0":
                        same_as(rows_of(h.complete(row["prompt_ids"], 12, "remote")), want, f"{name} died at {point}")
                h.start(name)
                took = remote_again(h, row, want)
                print(f"        {transport}: {name} died twice, remote again after {took:.2f} s")
                h.idle(20)


def one_of_two_dies(reaped):
    """Who gets how many of the six, and when, is the machine's business: again until both had some and the other one was sending."""
    for _ in range(5):
        if shared_death(reaped):
            return
    raise AssertionError("the two did not share the work, or no transfer was under way")


def shared_death(reaped):
    row = long_row()
    want = want_for(row, 30)
    faults = {"prefill-0": f"prefill.after_step=delay:{200 * SLOW:.0f}@1+;prefill.after_post=kill@4",
              "prefill-1": f"kvt.before_send=delay:{60 * SLOW:.0f}@1+"}
    with ByHand(prefill=2, faults=faults) as h:
        before = h.metrics()
        if reaped:
            threading.Thread(target=h.process["prefill-0"].wait, daemon=True).start()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(h.complete, row["prompt_ids"], 30, "remote") for _ in range(6)]
            h.dies("prefill-0")
            sent_then = fired(h, "prefill-1", "kvt.before_send")
            answers = [a.result() for a in asked]
        for answer in answers:
            same_as(rows_of(answer), want, "one of two prefill workers killed")
        assert fired(h, "prefill-0", "prefill.after_post") == 1, "it did not die after its page"
        d = Delta(before, h.metrics())
        by = [answer.placement() for answer in answers]
        whole = [p for p in by if p["prefill"] == "prefill-1"]
        print(f"        {len(whole)} of 6 by prefill-1, which had sent {sent_then} of {fired(h, 'prefill-1', 'kvt.before_send')} messages at the death")
        if not 1 <= len(whole) < 6 or not 1 <= sent_then < fired(h, "prefill-1", "kvt.before_send"):
            return False
        assert all(p["mode"] == "remote" and p["bytes"] == str(BYTES) for p in whole), whole
        assert d("kvasir_prefill_calls_total", worker="prefill-1") == len(whole), "a call to prefill-1 was not seen to its end"
        assert d("kvasir_prefill_tokens_total", worker="prefill-1") == len(whole) * len(row["prompt_ids"])
        assert d("kvasir_prefill_fallbacks_total", worker="decode-0") == 6 - len(whole)
        wrong = d("kvasir_kv_declined_total") - d("kvasir_kv_declined_total", reason="transport")  # what the dead one had begun
        assert wrong == 0, "declined pages"
        assert os.path.exists(f"/proc/{h.pid('prefill-0')}") == (not reaped)
        h.idle(20)
        assert h.complete(row["prompt_ids"], 4, "remote").placement()["prefill"] == "prefill-1"
    return True


def test_other_transfers_go_on_undisturbed():
    """One of two prefill workers dies after its fourth page while the other one's pages travel: all of those arrive."""
    one_of_two_dies(True)


def test_other_transfers_go_on_undisturbed_beside_a_zombie():
    one_of_two_dies(False)


def test_a_decode_worker_dies_as_pages_land():
    """What it had begun goes on at the other decode worker; the prefill worker gets its pages back."""
    row = long_row()
    want = want_for(row, 20)
    with ByHand(decode=2, faults={"decode-0": "kvt.after_page=kill@4"}) as h:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: h.complete(row["prompt_ids"], 20, "remote"), range(4)))
        for answer in answers:
            same_as(rows_of(answer), want, "one of two decode workers killed")
            assert answer.placement()["decode"] == "decode-1", answer.placement()
        assert fired(h, "decode-0", "kvt.after_page") == 1, "it did not die after its page"
        h.reap("decode-0")
        assert h.log("router").count("request goes on elsewhere") >= 1
        assert alive(h.pid("prefill-0"))
        h.idle(20)


if __name__ == "__main__":
    main()
