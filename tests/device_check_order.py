#!/usr/bin/env python3
"""Checks tools/gpu_check and tools/hpu_check with programs that only pretend: the order of the steps of each part, the
results after each of them, the deadline, exit statuses and words when a program crashes, hangs or prints nonsense; and
that tools/gpu_pack and tools/hpu_pack name what is missing.

usage: device_check_order.py SOURCE_DIR     prints what is wrong
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest.mock

root = pathlib.Path(sys.argv[1]).resolve()
sys.path[:0] = [str(root / "tools"), str(root / "bench")]
from device.kit import PACKED, make_record  # noqa: E402
from device.programs import Deadline, Failed, Stopped  # noqa: E402
from device.sequence import NSIGHT_KERNELS  # noqa: E402

STEPS = {
    "gpu truth": ["info", "faults", "twins", "tests, own products", "tests, cuBLASLt", "training", "124M twice",
                  "matmul algorithms", "sanitizers"],
    "gpu numbers": ["info", "step, 124M", "step, 1.5B", "PyTorch, steps", "plan beside trace", "kernels, bf16",
                    "PyTorch, kernels", "speed of light", "step, 124M, measured algorithms", "training, offload",
                    "kernels, others"],
    "hpu truth": ["info", "faults", "built-in functions", "training beside the CPU", "tests, portable",
                  "tests, sub_groups", "tests, dpas", "tests of ranks and engines"],
    "hpu numbers": ["info", "training", "step, 124M", "plan beside trace", "kernels, bf16", "kernels, others"]}
# $FAKE says what goes wrong. Each call is a line of $CALLS.
COMMAND = r"""#!/bin/sh
echo "zerograd $*" >> "$CALLS"
after() { # flag: prints the word behind it
  wanted=$1; shift
  while [ $# -gt 1 ]; do [ "$1" = "$wanted" ] && { echo "$2"; return; }; shift; done
}
case "$1 $2" in
  info*)
    case $FAKE in
      no-gpu) echo "cuda   absent: there is no NVIDIA driver (libcuda.so.1)"; echo "hpu    absent: no loader" ;;
      own) echo "cuda   GPU, sm_90, 132 multiprocessors, own matmul (libcublasLt.so.13: no such file), no NCCL (x)" ;;
      packages) case $LD_LIBRARY_PATH in
          */nvidia/cublas/lib*) echo "cuda   GPU, sm_90, cuBLASLt 13.0.2, no NCCL (x)" ;;
          *) echo "cuda   GPU, sm_90, own matmul (not on the path), no NCCL (x)" ;;
        esac ;;
      broken) echo "libfmt.so.9: cannot open shared object file"; exit 127 ;;
      *) echo "cuda   NVIDIA H100, sm_90, cuBLASLt 13.0.2, NCCL 2.28.9"
         [ "$ZE_FLAT_DEVICE_HIERARCHY" != FLAT ] || echo "hpu    another tile"
         echo "hpu    accelerator" ;;
    esac ;;
  train*)
    case "$*" in *"--device-memory 1MiB"*) echo "error: OutOfMemory: no"; exit 3 ;; esac
    metrics=$(after --metrics "$@")
    memory=$(after --memory-json "$@")
    trace=$(after --trace "$@")
    [ -z "$trace" ] || echo "$TRACE" > "$trace"
    [ -z "$metrics" ] || printf '{"loss":%s,"step_s":0.5}\n' 9.0 8.0 7.0 > "$metrics"
    [ -z "$memory" ] || echo "{}" > "$memory"
    [ "$FAKE" != far-from-cpu ] || case "$*" in *"--device cpu"*) echo '{"loss":7.2,"step_s":0.5}' > "$metrics" ;; esac
    [ "$FAKE" != another-hash ] || case "$*" in *gpt2*) echo "param_hash $$"; exit ;; esac
    [ "$FAKE" != two-hashes ] || case "$*" in *"--ranks 2"*) echo "param_hash 8"; exit ;; esac
    echo "param_hash 7" ;;
  plan*)
    kernels=$(after --kernels "$@")
    [ -z "$kernels" ] && echo "{}" > "$(after --memory-json "$@")" || echo "$PLAN" > "$kernels" ;;
  "bench matmul-algorithms") echo algorithms > "$(after --out "$@")"; echo "written" ;;
  "bench kernels")
    echo '| case | shape | dtype | threads | median ms | p10 - p90 | GFLOP/s | GB/s | limit | % of limit | best |'
    echo '| add | 5x3072 | bf16 | 1 | 2.0 | 1.0 - 3.0 | 4.0 | 5.0 | memory | 60 % | 70 % |'
    [ "$FAKE" != half-a-table ] || exit 1
    [ "$FAKE" != odd-row ] || { echo '{"rows":[{"case":"add","shape":"5","dtype":"f32","median_s":"2"}]}' \
      > "$(after --json "$@")"; exit; }
    [ "$FAKE" != odd-record ] || { echo '[]' > "$(after --json "$@")"; exit; }
    echo '{"rows":[{"case":"add","shape":"5x3072","dtype":"bf16","median_s":0.002,"flops_per_s":4e9,
      "bytes_per_s":5e9,"percent_of_limit":60}]}' > "$(after --json "$@")" ;;
  "bench step")
    [ "$FAKE" != nonsense ] || { echo "{" > "$(after --json "$@")"; exit; }
    case "$FAKE $*" in "memory "*"gpt2-xl"*"--batch-size 16"*) echo "error: OutOfMemory"; exit 3 ;; esac
    echo '{"median_s":0.1,"tokens_per_s":9,"percent_of_limit":50,"profile":[]}' > "$(after --json "$@")" ;;
esac
"""
# A product of 34 us with a GELU of 10 us inside, and a kernel so short that its 4 us are the host's wait.
TRACE = {"traceEvents": [
    {"ph": "M", "pid": 0, "tid": 1, "name": "thread_name", "args": {"name": "compute"}},
    *({"ph": "X", "pid": 0, "tid": 1, "cat": "kernel", "name": name, "ts": at, "dur": dur}
      for name, at, dur in (("gelu_forward", 2.0, 10.0), ("matmul", 0.0, 34.0), ("reduce", 40.0, 4.0)))]}
PLAN = {"predicted": {"micro_batches": 1, "step_seconds": 0.02}, "per_step": {"kernels": []}, "per_micro_batch": {"kernels": [
    {"op": "matmul", "kernel": "cublasLtMatmul", "launches": 3, "dtype": "bf16", "class": "product", "seconds": 12e-6,
     "bound": "operations"},
    {"op": "gelu_forward", "kernel": "map", "launches": 1, "dtype": "bf16", "class": "memory", "seconds": 12e-6,
     "bound": "bandwidth"}]}}
LACKING = "ZG_CUDA_MATMUL=cublaslt, but cuBLASLt"
TESTS = r"""#!/bin/sh
echo "test $* $ZG_CUDA_MATMUL$ZG_HPU_VARIANT" >> "$CALLS"
[ "$FAKE $ZG_CUDA_MATMUL" != "own cublaslt" ] || { echo "ZG_CUDA_MATMUL=cublaslt, but cuBLASLt is absent"; exit 1; }
[ "$FAKE $ZG_HPU_VARIANT" != "lacking dpas" ] || { echo "ZG_HPU_VARIANT: this device has no dpas"; exit 1; }
case "$*" in
  *--list-test-cases*) echo "probe: a first, with a comma"; echo "probe: a second" ;;
  *--test-case=probe:*second*) [ "$FAKE" != crash ] || kill -SEGV $$ ;;
  *--test-case=probe:*) ;;
  *)
    [ "$FAKE" != hang ] || { echo $$ >> "$CALLS.pids"; echo "started"; sleep 600; }
    case "$FAKE $*" in "one-group "*"--source-file=*/kernels/elementwise/*"*)
      echo "TEST CASE:  gelu"; echo "gelu_test.cpp:9: ERROR: CHECK( 1 == 2 )"
      echo "[doctest] test cases: 12 | 11 passed | 1 failed"; exit 1 ;;
    esac
    echo "[doctest] test cases: 12 | 12 passed" ;;
esac
"""
TWINS = r"""#!/bin/sh
echo "twins_gpu $*" >> "$CALLS"
[ "$FAKE $3" != "twin-crash mbarrier.wait" ] || { echo "wgmma: 2 cases, the same bits"; exit; }
echo "ldmatrix: 4 cases, the same bits"
[ "$FAKE" != twin-crash ] || { printf "mbarrier.wait: "; kill -SEGV $$; }
[ "$FAKE" != differs ] || { echo "tma.box: DIFFERS in 1 of 2 cases; case 0: word 3"; exit 1; }
"""
PYTHON = r"""#!/bin/sh
case "$*" in
  -c*) echo '[]' ;;
  *gpu.py\ steps) echo '{"text": "step gpt2 B16 T1024 bf16", "median_s": 0.05}' ;;
  *) echo '{"torch": "2.9"}'; echo '{"text": "add 5x3072 bf16", "median_s": 0.001}'
     echo '{"text": "adamw", "problem": "no memory"}' ;;
esac
"""
SMI = r"""#!/bin/sh
echo "nvidia-smi $*" >> "$CALLS"
case "$*" in *name*) echo "GPU, 580.1" ;; *) echo "1980, 2619, 640.2, 55, [N/A]" ;; esac
"""
NCU = r"""#!/bin/sh
echo "ncu $*" >> "$CALLS"
echo "==PROF== Connected"
echo '"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"'
echo '"0","hopper_forward","(8, 12, 16)","Duration","ns","131,000"'
echo '"0","hopper_forward","(8, 12, 16)","Memory Throughput","%","41.2"'
"""
wrong = []


def expect(condition, what):
    if not condition:
        wrong.append(what)


class Machine:
    """A folder with a packed kit of pretending programs, and what a run of a check gave."""

    def __init__(self, folder, device="gpu"):
        self.folder, self.kit, self.out, self.device = folder, folder / "kit", folder / "out", device
        programs = {f"kit/bin/{name}": COMMAND if name == "zerograd" else TWINS if name == "twins_gpu" else TESTS
                    for name in PACKED[device]}
        for name, text in {**programs, "kit/LICENSE": "text", "kit/twins.bin": "x", "python": PYTHON,
                           "tools/nvidia-smi": SMI, "tools/ncu": NCU}.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        make_record(self.kit, device, "abc123")

    def command(self, *flags, python=None):
        return [sys.executable, str(root / f"tools/{self.device}_check"), "--packed", str(self.kit), "--out",
                str(self.out), "--python", str(python or self.folder / "python"), *map(str, flags)]

    def environment(self, fake, **more):
        return {**os.environ, "FAKE": fake, "CALLS": str(self.folder / "calls"), "OUT": str(self.out),
                "PATH": f"{self.folder}/tools:/usr/bin:/bin", "TRACE": json.dumps(TRACE), "PLAN": json.dumps(PLAN), **more}

    def check(self, fake, status, *flags, python=None, **environment):
        """Runs the check. Returns its steps by name: {name: (result, what)}."""
        # The programs that hang sleep for longer than the timeout, so a deadline that is not kept fails here.
        done = subprocess.run(self.command(*flags, python=python), capture_output=True, text=True, timeout=300,
                              env=self.environment(fake, **environment))
        self.text, self.error = done.stdout, done.stderr
        expect(done.returncode == status, f"{fake}: status {done.returncode}, expected {status}: {done.stderr}")
        expect("Traceback" not in done.stdout + done.stderr, f"{fake}: a traceback: {done.stderr}")
        return self.steps(fake, "numbers" if "numbers" in flags else "truth")

    def steps(self, fake, part="truth"):
        file = self.out / f"{self.device}-{part}.json"
        if not file.exists():
            return {}
        self.record = json.loads(file.read_text())
        names, order = [step["step"] for step in self.record["steps"]], STEPS[f"{self.device} {part}"]
        expect(names == [name for name in order if name in names], f"{fake}: the order is {names}")
        return {step["step"]: (step["result"], step["what"]) for step in self.record["steps"]}


class Machines:
    """Makes machines in a temporary folder."""

    def __init__(self, folder):
        self.folder, self.count = pathlib.Path(folder), 0

    def __call__(self, device="gpu"):
        self.count += 1
        return Machine(self.folder / str(self.count), device)


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def all_end(pids):
    """Whether all of them end. SIGKILL takes effect some time after it was sent."""
    for _ in range(600):
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.05)
    return False


def check_stop_at_start():
    """A signal that comes just as a program has started, before its caller knows of it, leaves nothing running."""
    class Starting(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            started.append(self.pid)
            signal.raise_signal(signal.SIGTERM)

    def stop(number, frame):
        raise Stopped(number)

    started, said = [], "nothing"
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with unittest.mock.patch("subprocess.Popen", Starting):
            Deadline(60).run(["sleep", "600"])
    except Stopped as reason:
        said = str(reason)
    finally:
        signal.signal(signal.SIGTERM, before)
    ended = all_end(started)
    expect(said == "stopped by SIGTERM" and ended, f"SIGTERM at a start: {said}; all have ended: {ended}")
    if not ended:
        os.killpg(started[0], signal.SIGKILL)


def check_numbers(make):
    m = make()
    m.check("none", 0, "--only", "algorithms")
    steps = m.check("none", 0, "numbers")
    expect(list(steps) == STEPS["gpu numbers"] and all(result == "passed" for result, _ in steps.values()),
           f"numbers: {steps}")
    table = (m.out / "gpu-numbers.md").read_text()
    for words in ("commit abc123", "| add | 5x3072 | bf16 | 2000.0 | 0.0 | 5 | 60 | 1000.0 | 0.50x |",
                  "| matmul | 3 | 0.01 | 0.02 |", "| hopper_forward | (8, 12, 16) | 131.0 | 0 | 41 |",
                  "| 1980 (1980), 640 |"):
        expect(words in table, f"numbers: no '{words}' in {table}")
    expect("adamw: no memory" in steps["PyTorch, kernels"][1] and "step gpt2 B16 T1024 bf16: 50.0 ms" in
           steps["PyTorch, steps"][1], f"numbers: {steps}")
    shares = json.loads((m.out / "gpu-peaks.json").read_text())["efficiencies"][-2:]
    expect(shares[0]["operations"][:2] == [[1e9, 0.075], [1e10, 0.215]] and shares[1]["bandwidth"] == 1.0,
           f"numbers: the measured shares are {shares}")
    calls = (m.folder / "calls").read_text()
    expect("--clock-control none" in calls and f"--matmul-algorithms {m.out}/gpu-algorithms.json" in calls and
           calls.index("--filter  bf16$") < calls.index("--filter  (f64|f32|f16)$"), f"numbers: calls {calls}")
    asked = [line for line in calls.splitlines() if line.startswith("nvidia-smi")]
    expect(asked and all(line.startswith("nvidia-smi --query-gpu=") for line in asked), f"numbers: {asked}")
    m = make()
    steps = m.check("none", 0, "numbers", "--only", "light,measured", PATH="/usr/bin:/bin")
    expect([steps[name] for name in STEPS["gpu numbers"][7:9]] == [
        ("SKIPPED", "there is no ncu"),
        ("SKIPPED", "there is no gpu-algorithms.json, which the part truth writes")], f"numbers: {steps}")
    expect("1980" not in (m.out / "gpu-numbers.md").read_text(), "numbers: clocks without nvidia-smi")
    sources = " ".join(file.read_text() for file in (root / "kernels").glob("*/*.cu*"))
    for kernel in NSIGHT_KERNELS[:-1]:
        expect(re.search(rf"__global__[^{{;]*\b{kernel}\(", sources), f"speed of light: no kernel is named {kernel}")


def check_hpu(make):
    for part in ("truth", "numbers"):
        m = make("hpu")
        steps = m.check("none", 0, part)
        expect(list(steps) == STEPS[f"hpu {part}"] and all(result == "passed" for result, _ in steps.values()),
               f"hpu {part}: {steps}")
        expect("FLAT: 2 devices; COMPOSITE: 1 devices" in steps["info"][1] and m.record["device"] == "accelerator",
               f"hpu {part}: {steps['info']}")
    calls = (m.folder / "calls").read_text()
    expect("nvidia-smi" not in calls, "hpu: nvidia-smi was called")
    for fake, step, words in (("crash", "faults", "1 of 6: probe: a second: killed by SIGSEGV"),
                              ("far-from-cpu", "training beside the CPU", "on the CPU 7.2000, expected within 0.02"),
                              ("one-group", "tests, portable", "95 passed; elementwise: status 1: 1 failed: gelu")):
        m = make("hpu")
        steps = m.check(fake, 1, "--only", f"{step},ranks")
        expect(steps[step][0] == "FAILED" and words in steps[step][1], f"hpu {fake}: {steps[step]}")
        expect(steps["tests of ranks and engines"][0] == "passed", f"hpu {fake}: the steps after it did not run")
    m = make("hpu")
    steps = m.check("lacking", 0, "--only", "tests,")
    expect(steps["tests, dpas"] == ("SKIPPED", "ZG_HPU_VARIANT: this device has no dpas") and
           steps["tests, portable"][0] == "passed", f"hpu lacking: {steps}")
    expect(make("hpu").check("no-gpu", 6) == {}, "hpu no-gpu: something was written")
    m = make("hpu")
    m.device = "gpu"
    m.check("another kit", 2)
    expect("was packed by tools/hpu_pack; expected one of tools/gpu_pack" in m.error, f"another kit: {m.error}")


def check_limits():
    """A step's programs are cut at their limit and at the step's; only the deadline is late."""
    deadline = Deadline(100)
    deadline.begin_step(60, 0.5)
    expect(deadline.run(["sleep", "60"]).cut, "limits: no program was cut at its limit")
    deadline.begin_step(2, 60)
    expect(deadline.run(["sleep", "60"]).cut, "limits: no program was cut at its step's end")
    try:
        deadline.run(["true"])
        expect(False, "limits: a program ran after its step's end")
    except Failed as problem:
        expect(str(problem) == "the time of the step had passed before true ran", f"limits: {problem}")


def check_all(make):
    m = make()
    steps = m.check("none", 0)
    expect(list(steps) == STEPS["gpu truth"], f"none: steps {list(steps)}")
    expect([result for result, _ in steps.values()] == ["passed"] * 8 + ["SKIPPED"], f"none: {steps}")
    calls = (m.folder / "calls").read_text()
    expect("--steps 30" in calls and "--precision bf16" in calls and "ops_test.cpp own" in calls and
           "ops_test.cpp cublaslt" in calls and calls.count("--steps 3 ") == 2, f"none: calls {calls}")
    expect(calls.count("--source-file=") == 10 and calls.count("--source-file-exclude=") == 1, f"none: calls {calls}")
    expect("a first? with a comma" in calls, "none: a comma in a test's name would separate two filters")
    expect("WARNING" not in m.text, "none: a warning")

    m = make()
    steps = m.check("own", 0)
    expect(steps["tests, cuBLASLt"][1] == steps["matmul algorithms"][1].replace("cuBLASLt", LACKING), f"own: {steps}")
    warning = "cuBLASLt does not multiply, the project's own kernels do: libcublasLt.so.13: no such file."
    expect(f"WARNING: {warning}" in m.text and f"**{warning}" in (m.out / "gpu-truth.md").read_text(),
           f"own: no warning in {m.text}")

    m = make()
    (m.folder / "site/nvidia/cublas/lib").mkdir(parents=True)
    (m.folder / "site/nvidia/cublas/lib/libcublasLt.so.13").touch()
    m.check("packages", 0, "--only", "twins", python=sys.executable, PYTHONPATH=str(m.folder / "site"))
    expect("WARNING" not in m.text and m.record["library_folders"], f"packages: {m.record}")

    for fake, step, words in (("crash", "faults", "1 of 6: probe: a second: killed by SIGSEGV"),
                              ("two-hashes", "faults", "1 of 6: two ranks: param_hash 8, with one rank 7"),
                              ("differs", "twins", "tma.box: DIFFERS"),
                              ("twin-crash", "twins", "killed by SIGSEGV: mbarrier.wait:"),
                              ("one-group", "tests, own products",
                               "107 passed; elementwise: status 1: 1 failed: gelu: gelu_test.cpp:9: ERROR"),
                              ("another-hash", "124M twice", "param_hash of two equal runs: "),
                              ("half-a-table", "kernels, bf16", "1 kernels, then status 1"),
                              ("odd-row", "kernels, bf16", "gpu_check itself: report.py:"),
                              ("odd-record", "kernels, bf16", "gpu_check itself: steps.py:"),
                              ("nonsense", "step, 124M", "gpu_check itself: decoder.py:")):
        m = make()
        part, last = ("truth", "sanitizers") if step in STEPS["gpu truth"] else ("numbers", "training, offload")
        steps = m.check(fake, 1, part, "--only", f"{step},{last}")
        expect(steps[step][0] == "FAILED" and words in steps[step][1], f"{fake}: {steps[step]}")
        expect(last in steps, f"{fake}: the steps after it did not run")
        if fake == "twin-crash":
            expect("wgmma: 2 cases, the same bits" in m.record["twins"], f"{fake}: {m.record['twins']}")
        if fake == "one-group":
            expect("TEST CASE:  gelu" in m.record["failed_tests"]["tests, own products: elementwise"], f"{fake}: no text of the failure")
    m = make()
    expect("--batch-size 8 --grad-accum 2" in m.check("memory", 0, "numbers")["step, 1.5B"][1], "memory: no smaller batch")

    m = make()
    steps = m.check("hang", 4, "--seconds", 20)
    expect(list(steps) == STEPS["gpu truth"] and
           [result for result, _ in steps.values()] == ["passed"] * 3 + ["LATE"] * 5 + ["SKIPPED"], f"hang: {steps}")
    expect("it printed last: started" in steps["tests, own products"][1], f"hang: {steps['tests, own products']}")
    expect(all_end((m.folder / "calls.pids").read_text().split()), "hang: it still runs")

    m = make()
    (m.folder / "slow").write_text("#!/bin/sh\nexec sleep 600\n")
    (m.folder / "slow").chmod(0o755)
    m.check("slow python", 4, "--seconds", 1, python=m.folder / "slow")

    for flags, words in ((("--only", "zzz"), "--only: expected words of the steps' names"),
                         (("--seconds", "nan"), "--seconds: expected a number above 0, got nan"),
                         (("--packed", ""), "has no usable pack.json")):
        m = make()
        m.check(flags[0], 2, *flags)
        expect(words in m.error and not m.out.exists(), f"{flags}: {m.error}")
    m = make()
    m.check("ASCII", 0, "--only", "twins", PYTHONIOENCODING="ascii")
    with open("/dev/full", "w") as full:
        done = subprocess.run(m.command("--only", "twins"), stdout=full, stderr=subprocess.PIPE, text=True,
                              env=m.environment("none"))
    expect(done.returncode == 1 and "Traceback" not in done.stderr and "standard output: No space" in done.stderr,
           f"/dev/full: {done.returncode}: {done.stderr}")

    for number in (signal.SIGTERM, signal.SIGKILL):
        m = make()
        process = subprocess.Popen(m.command(), env=m.environment("hang"), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        started = m.folder / "calls.pids"
        while not (started.exists() and started.read_text()) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        pids = started.read_text().split()
        if number == signal.SIGKILL:  # which leaves what it has started
            os.killpg(int(pids[0]), signal.SIGKILL)
        text, error = process.communicate(timeout=60)
        steps = m.steps(number.name)
        expect(list(steps)[:3] == STEPS["gpu truth"][:3] and (m.out / "gpu-truth.md").exists(), f"{number.name}: {steps}")
        expect(all_end(pids), f"{number.name}: it still runs")
        if number == signal.SIGTERM:
            expect(process.returncode == 143, f"SIGTERM: status {process.returncode}: {error}")
            expect("Traceback" not in text + error and "1 late" in text, f"SIGTERM: {text} {error}")
            expect(steps.get("tests, own products") == ("LATE", "stopped by SIGTERM"), "SIGTERM: no result")

    m = make()
    expect(m.check("no-gpu", 6) == {} and not m.out.exists(), "no-gpu: something was written")
    expect(m.error == "gpu_check: no GPU: there is no NVIDIA driver (libcuda.so.1)\n", f"no-gpu: {m.error}")
    m = make()
    steps = m.check("broken", 1)
    expect(list(steps) == ["info"] and "libfmt.so.9: cannot open" in steps["info"][1], f"broken: {steps}")
    m = make()
    (m.kit / "bin/twins_gpu").write_text("half")
    m.check("damaged", 2)
    expect("bin/twins_gpu is missing or has another size" in m.error, f"damaged: {m.error}")
    (m.kit / "pack.json").unlink()
    m.check("no record", 2)
    expect("expected the folder that the archive of tools/gpu_pack unpacks to" in m.error, f"no record: {m.error}")
    m = make()
    m.out.write_text("a file")
    m.check("no folder", 1)
    expect("gpu_check: cannot write to" in m.error, f"no folder: {m.error}")


def check_pack(folder):
    (folder / "CMakeCache.txt").write_text("ZG_CUDA:STRING=OFF\n")
    for device, words in (("gpu", "was configured without nvcc (ZG_CUDA=OFF); install the CUDA Toolkit"),
                          ("hpu", "was configured without HPU; run tools/install-packages hpu")):
        done = subprocess.run([sys.executable, root / f"tools/{device}_pack", "--build", folder], capture_output=True,
                              text=True)
        expect(done.returncode == 6 and words in done.stderr and "Traceback" not in done.stderr,
               f"{device}_pack: {done.returncode}: {done.stderr}")


with tempfile.TemporaryDirectory() as temporary:
    machines = Machines(temporary)
    check_all(machines)
    check_numbers(machines)
    check_hpu(machines)
    check_limits()
    check_stop_at_start()
    check_pack(pathlib.Path(temporary))
print("\n".join(wrong) or "gpu_check, hpu_check and their packs do as they say")
sys.exit(1 if wrong else 0)
