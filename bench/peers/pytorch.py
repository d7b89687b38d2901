"""Runs the PyTorch programs of this folder with one Python in a controlled environment: PyTorch
unchanged, or with malloc tuned so that it keeps its memory. If its OpenBLAS does not know the
processor, it also runs with the kernels of a similar processor."""
import json
import os
import re
import signal
import subprocess

FOLDER = os.path.dirname(os.path.abspath(__file__))
TUNED = {"MALLOC_MMAP_THRESHOLD_": "8589934592", "MALLOC_TRIM_THRESHOLD_": "17179869184",
         "MALLOC_TOP_PAD_": "268435456"}
# Variables that users or this script may have set; they are removed from the environment.
CLEANED = re.compile(r"(OPENBLAS|MKL|ONEDNN|DNNL|OMP|GOMP|KMP|GOTO|MALLOC)_|LD_PRELOAD$")


def clean_environment(threads):
    kept = {name: value for name, value in os.environ.items() if not CLEANED.match(name)}
    return {**kept, "OMP_NUM_THREADS": str(threads)}


def cores(threads):
    """The last cores of this process, which are usually idle."""
    return sorted(os.sched_getaffinity(0))[-threads:]


def pinned(command, threads, environment, timeout=600):
    own = cores(threads)
    return subprocess.run(command, env=environment, capture_output=True, text=True,
                          timeout=timeout, preexec_fn=lambda: os.sched_setaffinity(0, own))


def processor_has(flag):
    with open("/proc/cpuinfo") as lines:
        return any(flag in line.split() for line in lines if line.startswith("flags"))


class Missing(Exception):
    """Why a Python has no PyTorch, and what to do."""


class Python:
    """An interpreter with PyTorch. Raises Missing if it has none."""

    def __init__(self, path):
        self.path, self.notes, self.onednn = path, [], {}
        install = ("apt-get install python3-torch" if path == "/usr/bin/python3" else
                   f"python3 -m venv DIR && DIR/bin/pip install torch numpy, and --python DIR/bin/python")
        try:
            done = pinned([path, "-c", "import torch; print(torch.__version__); torch.ones(9, 9) @ "
                           "torch.ones(9, 9)"], 1,
                          {**clean_environment(1), "OPENBLAS_VERBOSE": "2"})
        except OSError as error:
            raise Missing(f"{path}: {error.strerror}; try {install}") from error
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
            raise Missing(f"{path}: {reason}; try {install}")
        self.version = done.stdout.strip().split("+")[0]
        found = re.search(r"^Core: (\w+)", done.stderr, re.M)
        self.fair = {}
        best = ("SkylakeX" if processor_has("avx512f") else
                "Haswell" if processor_has("avx2") else None)
        # These old core types mean that PyTorch's OpenBLAS does not know this processor. NumPy may
        # load another OpenBLAS.
        if best and found and found[1] in ("Prescott", "Core2", "Generic", "Nehalem"):
            self.fair = {"OPENBLAS_CORETYPE": best}
            self.notes.append(f"PyTorch {self.version}: its OpenBLAS takes this processor for a "
                              f"{found[1]}; \"{best}\" is with OPENBLAS_CORETYPE={best}")

    def peers(self):
        if not self.fair:
            return [Peer(self, "as it comes", {}), Peer(self, "tuned", TUNED)]
        core = self.fair["OPENBLAS_CORETYPE"]
        return [Peer(self, "as it comes", {}), Peer(self, f"{core}", self.fair),
                Peer(self, f"{core}, tuned", {**self.fair, **TUNED})]


class Peer:
    """A Python and how it is set up: "PyTorch 1.13.0, tuned"."""

    def __init__(self, python, setting, variables):
        self.python, self.setting, self.variables = python, setting, variables
        self.is_tuned = setting.endswith("tuned")
        # True: slow only because OpenBLAS uses the wrong kernels. Measured only for the setting "as it
        # comes".
        self.is_unfair = bool(python.fair) and not variables
        self.is_old = python.version.startswith("1.")

    def __str__(self):
        return f"PyTorch {self.python.version}, {self.setting}"

    def run(self, words, threads):
        """The record of a program, ["gpt.py", "step", ...]."""
        def once():
            return pinned([self.python.path, os.path.join(FOLDER, words[0]), *words[1:],
                           "--threads", str(threads)], threads,
                          {**clean_environment(threads), **self.variables, **self.python.onednn})
        done = once()
        if done.returncode == -signal.SIGILL and not self.python.onednn:
            self.python.onednn = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
            self.python.notes.append(
                f"PyTorch {self.python.version}: dies of an illegal instruction here (SIGILL); runs "
                "from then on are with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16")
            done = once()
        if done.returncode != 0:
            raise RuntimeError(f"{self}: {' '.join(words)} ended with status {done.returncode}:\n"
                               f"{done.stderr[-2000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])
