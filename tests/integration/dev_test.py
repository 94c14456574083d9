# dev_test.py - `./dev run`, with the programs of this build: the cluster answers, says how fast and by which way, and --once leaves nothing behind,
# neither when all goes well nor when the question or the start fails. Whoever runs it is recognised by the temporary folder given to it.
# SPDX-License-Identifier: Apache-2.0
from kvasir_cluster import *

QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."


def processes_of(folder):
    """Names of the daemons whose command line has this folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            if alive(int(pid)) and any(folder.encode() in w for w in words):
                found.append(os.path.basename(words[0].decode()))
    return found


def dev_run(*args, seconds=120):
    """Exit code, output, and the most daemons of each name that were seen at once; nothing may be left."""
    folder = tempfile.mkdtemp(prefix="kvasir-it-")
    try:
        with tempfile.TemporaryFile("w+") as out:
            p = subprocess.Popen([os.path.join(SOURCE, "dev"), "run", *args, "--listen", "127.0.0.1:0", "--threads", "1"], stdin=subprocess.DEVNULL,
                                 stdout=out, stderr=subprocess.STDOUT, preexec_fn=die_with_parent, env={**os.environ, "TMPDIR": folder, "KVASIR_BIN": BIN})
            seen = {}

            def over():
                now = processes_of(folder)
                for name in now:
                    seen[name] = max(seen.get(name, 0), now.count(name))
                return p.poll() is not None
            try:
                wait_for("dev run ends", seconds * SLOW, over, 0.1)
            finally:
                if p.poll() is None:
                    p.terminate()
                    p.wait(30)
            out.seek(0)
            text = out.read()
        assert processes_of(folder) == [], f"left running: {processes_of(folder)}; {text}"
        assert os.listdir(folder) == [], f"left behind: {os.listdir(folder)}"
        return p.returncode, text, seen
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_once_answers_and_leaves_nothing():
    code, text, seen = dev_run("--once", "--model", smollm2())
    assert code == 0, text
    daemons = {name: n for name, n in seen.items() if name.startswith("kvasir-")}
    most = 1 if SLOW == 1 else 2  # the leak check of a sanitizer looks at its process from another of the same name
    assert daemons.keys() == {"kvasir-router", "kvasir-prefill-worker", "kvasir-decode-worker"} and max(daemons.values()) <= most, seen
    assert "building" not in text, "a test built a release"
    assert f"\n> {QUESTION}\n{ANSWER}\n" in text, text
    for pattern in (r"^TTFT +[0-9.]+ ms", r"^decode +[0-9.]+ tokens/s \([0-9]+ tokens\)", r"^placement +mode=remote prefill=prefill-0 decode=decode-0 cached=0 ",
                    r"^KV moved +[1-9][0-9]* bytes in [1-9][0-9]* pages by shm; .*\([0-9.]+ MB/s\)", r"^dev: stopped; nothing is left running$"):
        assert re.search(pattern, text, re.M), f"{pattern!r} is not in {text}"


def test_failures_leave_nothing_either():
    code, text, seen = dev_run("--once", "--model", "/nonexistent.gguf")
    assert code != 0 and "kvasir: error: " in text and "the cluster did not start" in text, text
    assert not {"kvasir-router", "kvasir-decode-worker"} & seen.keys(), seen
    code, text, seen = dev_run("--once", "--model", need(STORIES, "stories260K"))  # no chat template: the question is refused
    assert code != 0 and "template" in text and "nothing is left running" not in text, text
    assert seen.get("kvasir-decode-worker") == 1, seen


if __name__ == "__main__":
    main()
