# parts_test.py - a model in several GGUF files is the same model: ids and logits by generate, score and a prefill and a decode worker, what
# model info and quantize make of it, and its identity (workers of the whole file and of the parts serve together). Then what is said when parts
# are missing or do not fit. The splitter is this script's own, by the format's description; where the PyPI package gguf is installed, its
# writer's parts are read, too.
# SPDX-License-Identifier: Apache-2.0
import struct

from kvasir_cluster import *

SHAPE = ["--context", "512", "--kv-type", "f32"]
HOLD = tempfile.TemporaryDirectory(prefix="kvasir-parts-")
FOLDER = HOLD.name
SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 30: (1, 2)}  # F32, F16, Q8_0, BF16: weights and bytes of a block
ALIGN = 32


def u64(b, at):
    return struct.unpack_from("<Q", b, at)[0]


def string(b, at):
    n = u64(b, at)
    return bytes(b[at + 8:at + 8 + n]), at + 8 + n


def after_value(b, at, kind):
    if kind == 8:
        return string(b, at)[1]
    if kind != 9:
        return at + SCALARS[kind]
    element, count = struct.unpack_from("<IQ", b, at)
    at += 12
    if element in SCALARS:
        return at + SCALARS[element] * count
    for _ in range(count):
        at = after_value(b, at, element)
    return at


class Whole:
    """A GGUF file taken apart: keys as (name, kind and value as bytes), tensors as (name, entry without its offset, data)."""

    def __init__(self, path):
        with open(path, "rb") as f:
            b = f.read()
        magic, self.version, tensors, keys = struct.unpack_from("<4sIQQ", b)
        assert magic == b"GGUF"
        at, self.keys, entries = 24, [], []
        for _ in range(keys):
            name, at = string(b, at)
            kind, = struct.unpack_from("<I", b, at)
            end = after_value(b, at + 4, kind)
            self.keys.append((name, b[at:end]))
            at = end
        for _ in range(tensors):
            begin = at
            name, at = string(b, at)
            dims, = struct.unpack_from("<I", b, at)
            shape = struct.unpack_from(f"<{dims}Q", b, at + 4)
            at += 4 + 8 * dims
            kind, offset = struct.unpack_from("<IQ", b, at)
            weights, size = BLOCKS[kind]
            for d in shape:
                size *= d
            entries.append((name, b[begin:at + 4], offset, size // weights))
            at += 12
        data = -(-at // ALIGN) * ALIGN
        self.tensors = [(name, entry, b[data + offset:data + offset + size]) for name, entry, offset, size in entries]


def part_bytes(version, keys, tensors, no, of, total):
    """What gguf-split writes: 16 bits, 16 bits, 32 bits."""
    keys = keys + [(b"split.no", struct.pack("<IH", 2, no)), (b"split.count", struct.pack("<IH", 2, of)),
                   (b"split.tensors.count", struct.pack("<Ii", 5, total))]
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(keys))
    for name, value in keys:
        head += struct.pack("<Q", len(name)) + name + value
    data = b""
    for _, entry, content in tensors:
        head += entry + struct.pack("<Q", len(data))
        data += content + bytes(-len(content) % ALIGN)
    return head + bytes(-len(head) % ALIGN) + data


def split(path, name, count=3, folder=None, keys_alone=False):
    """Cuts a file; the first part's path. keys_alone: no tensors in the first part."""
    w, folder = Whole(path), folder or FOLDER
    n, shares = len(w.tensors), count - keys_alone
    cuts = [0] * keys_alone + [n * i // shares for i in range(shares + 1)]
    for i in range(count):
        with open(os.path.join(folder, f"{name}-{i + 1:05}-of-{count:05}.gguf"), "wb") as f:
            f.write(part_bytes(w.version, w.keys if i == 0 else [], w.tensors[cuts[i]:cuts[i + 1]], i, count, n))
    return os.path.join(folder, f"{name}-00001-of-{count:05}.gguf")


def stories():
    return need(STORIES, "stories260K")


def mixtral():
    return need(os.path.join(SHARED, "models", "random", "tiny-mixtral.gguf"), "tiny-mixtral")


def said(*args):
    r = run(["kvasir", *args])
    assert r.returncode == 0, r.stderr
    return r.stdout


def test_generate_and_score():
    for whole, name, alone in ((stories(), "Stories", False), (mixtral(), "Mixtral", True)):
        first = split(whole, name, keys_alone=alone)
        for flags in (["--prompt", "Once upon a time", "-n", "16", "--json"], ["--ids", "1,5,9,200,31", "-n", "16", "--json", "--threads", "2"]):
            want = said("generate", "--model", whole, *SHAPE, *flags)
            assert len(want.splitlines()) > 5 and said("generate", "--model", first, *SHAPE, *flags) == want, f"{name} {flags}"
        want = said("score", "--model", whole, "--ids", "1,5,9,200,31,77", "--top", "512", "--json", *SHAPE)
        assert want.count("logit") > 4 and said("score", "--model", first, "--ids", "1,5,9,200,31,77", "--top", "512", "--json", *SHAPE) == want


def test_model_info_and_list():
    first = split(stories(), "Info")
    want, got = (said("model", "info", path, "--all") for path in (stories(), first))
    parts = [line for line in got.splitlines() if line.startswith("file ")]
    assert parts == [line + ", in 3 parts" for line in want.splitlines() if line.startswith("file ")]
    assert got.replace(", in 3 parts", "") == want
    cache = os.path.join(FOLDER, "cache")
    os.makedirs(os.path.join(cache, "models"))
    size = os.path.getsize(stories()) / 1e6
    listed = os.path.join(cache, "models", "L-0000{}-of-00003.gguf")
    split(stories(), "L", folder=os.path.join(cache, "models"))
    for gone, note in ((None, "(3 parts)"), (2, "(part 2 of 3 is missing)"), (1, "(part 1 of 3 is missing)")):
        if gone:
            os.remove(listed.format(gone))
        r = run(["kvasir", "model", "list"], env={"KVASIR_CACHE": cache})
        lines = [line for line in r.stdout.splitlines() if "gguf" in line]
        assert r.returncode == 0 and len(lines) == 1 and lines[0].endswith(f"{listed.format(1)}  {note}"), r.stdout
        assert gone or abs(float(lines[0].split()[1]) - size) < 0.11, lines


def test_quantize_makes_one_file():
    a, b = os.path.join(FOLDER, "a.gguf"), os.path.join(FOLDER, "b.gguf")
    said("quantize", stories(), a, "q8_0")
    said("quantize", split(stories(), "Quantize", 4), b, "q8_0")
    with open(a, "rb") as x, open(b, "rb") as y:
        assert x.read() == y.read()


def test_doctor():
    first = split(stories(), "Doctor")
    want, got = (run(["kvasir", "doctor", "--model", path, "--listen", "127.0.0.1:0", "--kv-memory", "64M"]).stdout for path in (stories(), first))
    keep = ("weights", "header", "loading", "KV", "peak")
    want, got = ([line for line in text.splitlines() if line.split()[:1] and line.split()[0] in keep] for text in (want, got))
    assert len(want) >= 5 and got == want, got


def test_prefill_and_decode_workers():
    """Started on the first part; a worker of each role with the whole file comes in, too: the model's identity is the same. Then each prefills
    for the other."""
    for whole, name in ((stories(), "Served"), (mixtral(), "Served-Moe")):
        first = split(whole, name)
        for i in (1, 2, 3):  # links, as some download caches have them: parts are found by the name that was given
            path = first.replace("-00001-", f"-0000{i}-")
            os.rename(path, os.path.join(FOLDER, f"{name}-blob{i}"))
            os.symlink(os.path.join(FOLDER, f"{name}-blob{i}"), path)
        ids = [1] + [3 + i * 7 % 400 for i in range(70)]
        want = generate_alone(whole, ids, 24, *SHAPE, "--ignore-eos")
        joined = []
        with Cluster(first, *SHAPE, "--block-tokens", "16", "--chunk-tokens", "32") as c:
            try:
                a = c.complete(ids, 24, "remote", ignore_eos=True)
                assert a.placement()["mode"] == "remote", a.placement()
                same_as(rows_of(a), want, f"{name}, of parts")
                same_as(rows_of(c.complete(ids, 24, "local", ignore_eos=True)), want, f"{name}, of parts, local")
                for role in ("prefill", "decode"):
                    worker = f"whole-{role}"
                    args = [os.path.join(BIN, f"kvasir-{role}-worker"), "--name", worker, "--model-name", "m", "--model", whole, *SHAPE,
                            "--block-tokens", "16", "--chunk-tokens", "32", "--threads", "1", "--discovery", f"ipc://{c.run_dir}/router.sock",
                            "--control", f"ipc://{c.dir}/{worker}.sock"]
                    c.names.append(worker)
                    with open(os.path.join(c.run_dir, worker + ".log"), "w") as log:
                        joined.append(subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent))

                def linked():
                    assert all(p.poll() is None for p in joined), c.log("whole-prefill") + c.log("whole-decode")
                    peers = {w["id"]: [p["id"] for p in w["peers"] if p["transport"]] for w in c.status()["workers"]}
                    return len(peers) == 4 and "whole-prefill" in peers.get("decode-0", []) and "prefill-0" in peers.get("whole-decode", [])
                wait_for("workers of the whole file beside those of its parts", START_SECONDS, linked)
                pairs = set()
                for _ in range(40):
                    a = c.complete(ids, 8, "remote", ignore_eos=True)
                    same_as(rows_of(a), want[:8], f"{name}, mixed")
                    pairs.add((a.placement()["prefill"].startswith("whole"), a.placement()["decode"].startswith("whole")))
                    if any(p != d for p, d in pairs) and len(pairs) > 1:
                        break
                assert any(p != d for p, d in pairs), f"never one of the parts with one of the whole: {pairs}"
            finally:
                for p in joined:
                    p.terminate()
                for p in joined:
                    assert p.wait(30 * SLOW) == 0


def test_default_name():
    first = split(stories(), "My.Model")
    d = os.path.join(FOLDER, "up")
    up = subprocess.Popen([os.path.join(BIN, "kvasir"), "up", "--model", os.path.relpath(first, FOLDER), "--listen", "127.0.0.1:0", "--run-dir", d,
                           "--threads", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=FOLDER,
                          preexec_fn=die_with_parent)
    try:
        told = said_until_ready(up, START_SECONDS, lambda: "")
        assert told["model"] == "my.model", told
        assert said("model", "list", "--url", told["ready"][len("http://"):]).strip() == "my.model"
    finally:
        up.terminate()
        assert up.wait(60 * SLOW) == 0


def refused(path, *words):
    for command in (["generate", "--model", path, "--prompt", "x"], ["model", "info", path], ["up", "--model", path, "--listen", "127.0.0.1:0"]):
        r = run(["kvasir", *command])
        lines = r.stderr.strip().splitlines()
        assert r.returncode != 0 and len(lines) == 1 and lines[0].startswith("kvasir: error: "), f"{command}: {r.stderr}"
        for word in words:
            assert word in lines[0], f"'{word}' is not in: {lines[0]}"
    r = run(["kvasir-decode-worker", "--model", path, "--discovery", "ipc:///tmp/nobody.sock"])
    last = r.stderr.strip().splitlines()[-1]
    assert r.returncode != 0 and all(word in last for word in words), f"{words} not in {last}"


def test_parts_that_are_missing_or_do_not_fit():
    first = split(stories(), "Wrong")
    part = [first.replace("-00001-", f"-0000{i}-") for i in (1, 2, 3)]
    keep = [open(p, "rb").read() for p in part]

    def with_part(i, content):
        with open(part[i], "wb") as f:
            f.write(content)

    refused(part[1], "'Wrong-00002-of-00003.gguf' is part 2 of 3", "give the first, 'Wrong-00001-of-00003.gguf'")
    os.rename(part[1], part[1] + ".away")
    refused(first, "part 2 of 3 is needed beside the first", "Wrong-00002-of-00003.gguf: No such file")
    os.rename(part[1] + ".away", part[1])
    with_part(2, keep[1])
    refused(first, "part 3 of 3, 'Wrong-00003-of-00003.gguf': split.no is 1, not 2", "fetch all parts anew")
    with_part(2, keep[2].replace(b"split.count" + struct.pack("<IH", 2, 3), b"split.count" + struct.pack("<IH", 2, 4)))
    refused(first, "part 3 of 3", "split.count is 4, not 3", "fetch all parts anew")
    with_part(2, keep[2][:-1000])
    refused(first, "part 3 of 3", "cut short, fetch it again")
    other = split(mixtral(), "Foreign")
    with open(other.replace("-00001-", "-00002-"), "rb") as f:
        with_part(1, f.read())
    with_part(2, keep[2])
    refused(first, "part 2 of 3", "split.tensors.count is", "fetch all parts anew")
    w = Whole(stories())
    with_part(1, part_bytes(3, [], w.tensors[len(w.tensors) // 3 - 1:len(w.tensors) * 2 // 3], 1, 3, len(w.tensors)))
    refused(first, "part 2 of 3", "is in part 1, too", "fetch all parts anew")
    with_part(1, part_bytes(3, [(b"llama.block_count", struct.pack("<II", 4, 6))], w.tensors[len(w.tensors) // 3:len(w.tensors) * 2 // 3], 1, 3,
                            len(w.tensors)))
    refused(first, "part 2 of 3", "key 'llama.block_count' is not as in the first part", "fetch all parts anew")
    with_part(1, keep[1])
    assert said("generate", "--model", first, "--prompt", "x", "-n", "2")


def test_parts_of_the_gguf_package():
    try:
        import gguf
    except ImportError as e:
        raise Skip(f"the Python package {e.name} is not installed") from None
    for whole, name in ((stories(), "Package"), (mixtral(), "Package-Moe")):
        reader = gguf.GGUFReader(whole)
        fields = [f for f in reader.fields.values() if not f.name.startswith("GGUF.") and f.name != "general.architecture"]
        w = gguf.GGUFWriter(os.path.join(FOLDER, name + ".gguf"), reader.fields["general.architecture"].contents(),
                            split_max_tensors=-(-len(reader.tensors) // 3))
        for f in fields:
            w.add_key_value(f.name, f.contents(), f.types[0], f.types[-1] if f.types[0] == gguf.GGUFValueType.ARRAY else None)
        for t in reader.tensors:
            w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        first = os.path.join(FOLDER, name + "-00001-of-00003.gguf")
        flags = ["--ids", "1,5,9,200,31", "-n", "30", "--json", "--ignore-eos", *SHAPE]
        assert said("generate", "--model", first, *flags) == said("generate", "--model", whole, *flags)


if __name__ == "__main__":
    main()
