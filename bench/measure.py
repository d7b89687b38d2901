"""For benchmarks of whole runs: runs and their records, alternating rounds, the machine's name."""
import datetime
import json
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile


def commit():
    folder = os.path.dirname(os.path.abspath(__file__))
    try:
        done = subprocess.run(["git", "-C", folder, "rev-parse", "--short", "HEAD"],
                              capture_output=True, text=True)
    except OSError:  # this machine has no git
        return "unknown"
    return done.stdout.strip() or "unknown"


def machine():
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {len(os.sched_getaffinity(0))} cores"


def heading(title, measured_commit=None):
    date = datetime.datetime.now(datetime.timezone.utc).date()
    return f"# {title}\n\n{date}, commit {measured_commit or commit()}, {machine()}\n"


class Run:
    """A training run: its output, its metrics (a dict per step), and its CPU seconds."""

    def __init__(self, out, steps, cpu_s):
        self.out, self.steps, self.cpu_s = out, steps, cpu_s

    def step_times(self, warm_up):
        return [step["step_s"] for step in self.steps[warm_up:]]

    def number_after(self, words):
        """The number after these words in the last line that has them."""
        return float(re.findall(re.escape(words) + r"([0-9.]+)", self.out)[-1])


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def train(zerograd, flags):
    """A Run."""
    before = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics")
        done = subprocess.run([zerograd, "train", *flags, "--metrics", metrics], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            sys.exit(f"{shlex.join(['zerograd', 'train', *flags])} ended with status "
                     f"{done.returncode}:\n{done.stderr}")
        with open(metrics) as lines:
            records = [json.loads(line) for line in lines]
    return Run(done.stdout, [record for record in records if "step_s" in record],
               cpu_seconds() - before)


def planned(zerograd, flags):
    """The record of memory of a plan."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record")
        subprocess.run([zerograd, "plan", *flags, "--memory-json", record], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(record) as text:
            return json.load(text)


def in_turns(names, rounds, measure):
    """measure(name) of each in every round, from the first to the last and back, so that a machine
    that gets slower or faster touches all alike: a list by name."""
    results = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            results[name].append(measure(name))
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr)
    return results


def ratios(runs, others):
    """Of the medians of steps, round by round."""
    return [statistics.median(run) / statistics.median(other) for run, other in zip(runs, others)]


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def drive_rates(folder, mebibytes=4096):
    """Bytes a second that a drive writes and reads past the page cache, in requests of 4 MiB."""
    path = os.path.join(folder, "rate")
    seconds = []
    try:
        for words in (["if=/dev/zero", f"of={path}", "oflag=direct"],
                      [f"if={path}", "of=/dev/null", "iflag=direct"]):
            said = subprocess.run(["dd", "bs=4M", f"count={mebibytes // 4}", *words],
                                  capture_output=True, text=True, check=True,
                                  env={**os.environ, "LC_ALL": "C"}).stderr
            seconds.append(float(re.search(r", ([0-9.e-]+) s,", said).group(1)))
    finally:
        os.unlink(path)
    return tuple((mebibytes << 20) / time for time in seconds)
