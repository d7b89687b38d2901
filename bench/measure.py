"""Helpers of the scripts that benchmark whole training runs: start a run and read its metrics,
alternate between variants, describe the machine."""
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
import time


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
    return f"{names[0] if names else 'unknown processor'}, {len(os.sched_getaffinity(0))} CPUs"


def heading(title, measured_commit=None):
    date = datetime.datetime.now(datetime.timezone.utc).date()
    return f"# {title}\n\n{date}, commit {measured_commit or commit()}, {machine()}\n"


class Run:
    """A training run: its output, its metrics (a dict per step), its CPU seconds, and for each core of the machine
    the share of the run's time in which any program kept it busy."""

    def __init__(self, out, steps, cpu_s, busy):
        self.out, self.steps, self.cpu_s, self.busy = out, steps, cpu_s, busy

    def step_times(self, warm_up):
        return [step["step_s"] for step in self.steps[warm_up:]]

    def number_after(self, words):
        """The number that follows `words` at their last occurrence in the output."""
        return float(re.findall(re.escape(words) + r"([0-9.]+)", self.out)[-1])


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def core_ticks():
    """For each core that this process may use: (busy, all) ticks since the machine started."""
    own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    with open("/proc/stat") as lines:
        rows = [line.split() for line in lines]
    ticks = [[int(number) for number in row[1:9]] for row in rows if row and row[0] in own]
    return [(sum(numbers) - numbers[3] - numbers[4], sum(numbers)) for numbers in ticks]  # idle and iowait


def busy_shares(before, after):
    return [(busy - busy_before) / max(1, total - total_before)
            for (busy_before, total_before), (busy, total) in zip(before, after)]


def train(zerograd, flags):
    """Runs `zerograd train` with these flags and returns its Run. Ends this program if it fails."""
    before, ticks = cpu_seconds(), core_ticks()
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
               cpu_seconds() - before, busy_shares(ticks, core_ticks()))


def planned(zerograd, flags):
    """The JSON that `zerograd plan --memory-json` writes for these flags."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record")
        done = subprocess.run([zerograd, "plan", *flags, "--memory-json", record], text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done.returncode != 0:
            sys.exit(f"zerograd plan {shlex.join(map(str, flags))}: {done.stderr}")
        with open(record) as text:
            return json.load(text)


def in_turns(names, rounds, measure):
    """Calls measure(name) once for each name in each round. Every second round reverses the order,
    so that a drift of the machine's speed affects all names equally. Returns {name: [results]}."""
    results = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            results[name].append(measure(name))
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr)
    return results


def ratios(runs, others):
    """For each round: the median step time of `runs` divided by that of `others`."""
    return [statistics.median(run) / statistics.median(other) for run, other in zip(runs, others)]


def percentile(values, percent):
    """The value at index n * percent // 100 of the n sorted values."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def drive_rates(folder, mebibytes=4096, requests=8):
    """Returns the (write, read) rates of the drive of `folder` in bytes per second, with O_DIRECT and `requests`
    requests of 4 MiB at a time, each from a program of its own."""
    path = os.path.join(folder, "rate")
    share = mebibytes // 4 // requests
    seconds = []
    try:
        for name, place, flags in (("of", "seek", ["if=/dev/zero", "oflag=direct", "conv=notrunc"]),
                                   ("if", "skip", ["of=/dev/null", "iflag=direct"])):
            start = time.monotonic()
            programs = [subprocess.Popen(["dd", "bs=4M", f"count={share}", f"{name}={path}", f"{place}={i * share}",
                                          *flags], stderr=subprocess.DEVNULL) for i in range(requests)]
            if any([program.wait() for program in programs]):
                sys.exit(f"dd could not move {mebibytes} MiB in {folder}; try another folder")
            seconds.append(time.monotonic() - start)
    finally:
        if os.path.exists(path):
            os.unlink(path)
    return tuple((4 * share * requests << 20) / taken for taken in seconds)
