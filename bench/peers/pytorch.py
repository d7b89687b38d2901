"""Runs the programs of this folder with one Python in a controlled environment: unchanged, or with malloc tuned so
that it keeps its memory."""
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


class Missing(Exception):
    """Why a Python lacks a module, and what to do."""


class Python:
    """An interpreter with PyTorch. Raises Missing if it has none."""

    def __init__(self, path):
        self.path, self.notes, self.onednn = path, [], {}
        self.version = self.version_of("torch", "apt-get install python3-torch" if path == "/usr/bin/python3" else
                                       "python3 -m venv DIR && DIR/bin/pip install torch numpy, and --python "
                                       "DIR/bin/python")

    def version_of(self, module, install):
        try:
            done = pinned([self.path, "-c", f"import {module}; print({module}.__version__)"], 1, clean_environment(1))
        except OSError as error:
            raise Missing(f"{self.path}: {error.strerror}; try {install}") from error
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
            raise Missing(f"{self.path}: {reason}; try {install}")
        return done.stdout.strip().split("+")[0]

    def run(self, words, threads, variables):
        """The record of a program, ["gpt.py", "step", ...]."""
        def once():
            return pinned([self.path, os.path.join(FOLDER, words[0]), *words[1:], "--threads", str(threads)], threads,
                          {**clean_environment(threads), **variables, **self.onednn})
        done = once()
        if done.returncode == -signal.SIGILL and not self.onednn:
            self.onednn = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
            self.notes.append(f"PyTorch {self.version}: dies of an illegal instruction here (SIGILL); runs from then "
                              "on are with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16")
            done = once()
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])


class Peer:
    """A column of a row: a program in a Python, as it comes or with malloc tuned."""

    def __init__(self, python, name, words, is_tuned):
        self.python, self.words, self.is_tuned = python, words, is_tuned
        self.name = name + (", tuned malloc" if is_tuned else "")

    def __str__(self):
        return self.name

    def run(self, threads):
        return self.python.run(self.words, threads, TUNED if self.is_tuned else {})
