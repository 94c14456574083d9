"""A cluster for a benchmark: `kvasir up` in a folder of its own, from the line that says it is ready until the block ends.

    with cluster(bin_dir, model, "--transport", "tcp") as url: ...        the model's name is "bench"
SPDX-License-Identifier: Apache-2.0
"""
import contextlib
import subprocess
import sys
import tempfile


@contextlib.contextmanager
def cluster(bin_dir, model, *flags):
    with tempfile.TemporaryDirectory(prefix="kvasir-bench.") as run:
        up = subprocess.Popen([bin_dir + "/kvasir", "up", "--model", model, "--model-name", "bench", "--listen", "127.0.0.1:0", "--run-dir",
                               run + "/run", *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            url = next((line.split()[1] for line in up.stdout if line.startswith("ready ")), None)
            if url is None:
                sys.exit("the cluster did not start; kvasir up with the same flags says why")
            yield url
        finally:
            up.terminate()
            up.wait(60)
