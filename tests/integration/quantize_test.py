# quantize_test.py - `kvasir quantize`: its files load and run here, and other GGUF software reads them: the PyPI package gguf, which also
# makes the same blocks bit for bit (that part is skipped where the package is not installed).
# SPDX-License-Identifier: Apache-2.0
import os
import tempfile

from kvasir_cluster import *

TYPES = ["f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
HOLD = tempfile.TemporaryDirectory(prefix="kvasir-quantize-")
FOLDER = HOLD.name


def source():
    path = os.path.join(FOLDER, "f32.gguf")
    if not os.path.exists(path):
        maker = os.path.join(os.path.dirname(os.environ["KVASIR_BIN"]), "tests", "make_tiny_model")
        subprocess.run([maker, path, "f32", "5"], check=True, timeout=60)
    return path


def quantized(kind):
    path = os.path.join(FOLDER, kind + ".gguf")
    if not os.path.exists(path):
        r = run(["kvasir", "quantize", source(), path, kind])
        assert r.returncode == 0, r.stderr
        assert f"36 tensors to {kind}, 11 kept" in r.stdout, r.stdout
    return path


def test_files_run():
    for kind in TYPES:
        r = run(["kvasir", "generate", "--model", quantized(kind), "--ids", "1,5,9", "-n", "8", "--json"])
        assert r.returncode == 0 and len(r.stdout.splitlines()) == 8, r.stderr
    assert sorted(os.listdir(FOLDER)) == sorted(k + ".gguf" for k in TYPES + ["f32"]), "parts were left behind"


def test_refusals_say_why():
    for args, words in [
        ([quantized("q8_0"), os.path.join(FOLDER, "no.gguf"), "q4_0"], "token_embd.weight has type Q8_0"),
        ([source(), quantized("q8_0"), "q8_0"], "is there already"),
        ([source(), os.path.join(FOLDER, "no.gguf"), "q9"], "is not one of"),
        ([source(), os.path.join(FOLDER, "nowhere", "no.gguf"), "q8_0"], "cannot be made"),
        ([os.path.join(FOLDER, "none.gguf"), os.path.join(FOLDER, "no.gguf"), "q8_0"], "none.gguf"),
        ([source()], "needs IN, OUT and TYPE"),
    ]:
        r = run(["kvasir", "quantize", *args])
        assert r.returncode != 0 and words in r.stderr, f"{args}: {r.stderr}"
        assert not os.path.exists(os.path.join(FOLDER, "no.gguf"))


def test_gguf_package_reads_the_same_blocks():
    try:
        import numpy
        from gguf import GGUFReader
        from gguf.quants import quantize
    except ImportError:
        print("        skipped: the Python package gguf is not installed")
        return
    before = {t.name: t for t in GGUFReader(source()).tensors}
    for kind in TYPES:
        r = GGUFReader(quantized(kind))
        assert r.fields["general.quantization_version"].parts[-1][0] == 2
        changed = 0
        for t in r.tensors:
            old = before[t.name]
            want = old.data
            if t.tensor_type != old.tensor_type:
                want = old.data.astype("<f2") if kind == "f16" else quantize(numpy.array(old.data), t.tensor_type)
                changed += 1
            assert want.tobytes() == t.data.tobytes(), f"{kind}: {t.name} differs"
        assert changed == 36 and len(r.tensors) == len(before)


if __name__ == "__main__":
    main()
