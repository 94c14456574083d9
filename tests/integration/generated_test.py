# generated_test.py - the placement property on small generated models, for machines where no reference model is at hand: the same tokens and
# logits, bit for bit, alone, local, remote, near, over tcp, by page geometry, chunk size and batch, in F32 and quantized weights.
# SPDX-License-Identifier: Apache-2.0
import placement_test
from kvasir_cluster import *
from placement_test import Shape, run_shape

PROMPTS = [[1], [1] + [40 + i * 7 % 250 for i in range(15)], [1] + [259 + i * 11 % 60 for i in range(28)], [1] + [3 + i % 250 for i in range(80)]]
ROWS = [{"prompt": f"{len(ids)} tokens", "prompt_ids": ids, "n_out": 24} for ids in PROMPTS]


def with_model(kind, seed, shapes):
    with tempfile.TemporaryDirectory(prefix="kvasir-it-") as d:
        path = os.path.join(d, "tiny.gguf")
        subprocess.run([os.environ.get("KVASIR_MAKE_MODEL", os.path.join(BIN, "..", "tests", "make_tiny_model")), path, kind, str(seed)],
                       check=True, timeout=30)
        placement_test.MODEL = path
        placement_test._alone.clear()
        for shape in shapes:
            run_shape(shape, ROWS, 24)


def test_f32_weights():
    with_model("f32", 1, [Shape("f32"), Shape("f32", "tcp", 16, 1, 7), Shape("f16", "shm", 16, 2, 64), Shape("f16", "tcp", 0, 0, 1),
                         Shape("q8_0", "tcp", 16, 1, 7), Shape("q8_0", "shm")])


def test_q4_1_weights():
    with_model("q4_1", 2, [Shape("f32", "tcp", 16, 1, 1), Shape("f16", "shm", 0, 0, 7)])


def test_q8_0_weights():
    with_model("q8_0", 3, [Shape("f16", "shm", 32, 3, 512)])


def test_q4_0_weights():
    with_model("q4_0", 4, [Shape("f16", "tcp", 16, 1, 7)])


if __name__ == "__main__":
    main()
