#!/usr/bin/env python3
"""Checks tools/gpu_check with programs that only pretend: the order of its steps, the results after each of them,
the deadline, its exit statuses and its words when a program crashes, hangs or prints nonsense; and that
tools/gpu_pack names what is missing without nvcc.

usage: gpu_check_order.py SOURCE_DIR     prints what is wrong
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

root = pathlib.Path(sys.argv[1]).resolve()
sys.path[:0] = [str(root / "tools"), str(root / "bench")]
from gpu.kit import make_record  # noqa: E402

STEPS = ["info", "faults", "twins", "tests, own products", "tests, cuBLASLt", "training", "kernels", "PyTorch",
         "step, 124M", "step, 1.5B", "training, offload", "opcodes", "sanitizers"]
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
      no-gpu) echo "cuda   absent: there is no NVIDIA driver (libcuda.so.1)" ;;
      own) echo "cuda   GPU, sm_90, 132 multiprocessors, own matmul (libcublasLt.so.13: no such file), no NCCL (x)" ;;
      packages) case $LD_LIBRARY_PATH in
          */nvidia/cublas/lib*) echo "cuda   GPU, sm_90, cuBLASLt 13.0.2, no NCCL (x)" ;;
          *) echo "cuda   GPU, sm_90, own matmul (not on the path), no NCCL (x)" ;;
        esac ;;
      broken) echo "libfmt.so.9: cannot open shared object file"; exit 127 ;;
      *) echo "cuda   GPU, sm_90, cuBLASLt 13.0.2, NCCL 2.28.9" ;;
    esac ;;
  train*)
    case "$*" in *"--device-memory 1MiB"*) echo "error: OutOfMemory: no"; exit 3 ;; esac
    metrics=$(after --metrics "$@")
    memory=$(after --memory-json "$@")
    [ -z "$metrics" ] || printf '{"loss":%s,"step_s":0.5}\n' 9.0 8.0 7.0 > "$metrics"
    [ -z "$memory" ] || echo "{}" > "$memory"
    [ "$FAKE" != two-hashes ] || case "$*" in *"--ranks 2"*) echo "param_hash 8"; exit ;; esac
    echo "param_hash 7" ;;
  plan*) echo "{}" > "$(after --memory-json "$@")" ;;
  "bench kernels")
    echo '| case | shape | dtype | threads | median ms | p10 - p90 | GFLOP/s | GB/s | limit | % of limit | best |'
    echo '| add | 5x3072 | bf16 | 1 | 2.0 | 1.0 - 3.0 | 4.0 | 5.0 | memory | 60 % | 70 % |'
    [ "$FAKE" != half-a-table ] || exit 1
    cp "$OUT/gpu-check.json" "$OUT/before-kernels.json"
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
TESTS = r"""#!/bin/sh
echo "test_gpu $* $ZG_CUDA_MATMUL" >> "$CALLS"
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
  *) echo '{"torch": "2.9"}'; echo '{"text": "add 5x3072 bf16", "median_s": 0.001}'
     echo '{"text": "adamw", "problem": "no memory"}' ;;
esac
"""
wrong = []


def expect(condition, what):
    if not condition:
        wrong.append(what)


class Machine:
    """A folder with a packed kit of pretending programs, and what a run of gpu_check gave."""

    def __init__(self, folder):
        self.folder, self.kit, self.out = folder, folder / "kit", folder / "out"
        for name, text in {"kit/bin/zerograd": COMMAND, "kit/bin/test_gpu": TESTS, "kit/bin/twins_gpu": TWINS,
                           "kit/LICENSE": "text", "kit/twins.bin": "x", "python": PYTHON}.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        make_record(self.kit, "abc123")

    def command(self, *flags, python=None):
        return [sys.executable, str(root / "tools/gpu_check"), "--packed", str(self.kit), "--out", str(self.out),
                "--python", str(python or self.folder / "python"), *map(str, flags)]

    def environment(self, fake, **more):
        return {**os.environ, "FAKE": fake, "CALLS": str(self.folder / "calls"), "OUT": str(self.out),
                "PATH": "/usr/bin:/bin", **more}

    def check(self, fake, status, *flags, python=None, **environment):
        """Runs gpu_check. Returns its steps by name: {name: (result, what)}."""
        # The programs that hang sleep for longer than the timeout, so a deadline that is not kept fails here.
        done = subprocess.run(self.command(*flags, python=python), capture_output=True, text=True, timeout=300,
                              env=self.environment(fake, **environment))
        self.text, self.error = done.stdout, done.stderr
        expect(done.returncode == status, f"{fake}: status {done.returncode}, expected {status}: {done.stderr}")
        expect("Traceback" not in done.stdout + done.stderr, f"{fake}: a traceback: {done.stderr}")
        return self.steps(fake)

    def steps(self, fake):
        file = self.out / "gpu-check.json"
        if not file.exists():
            return {}
        self.record = json.loads(file.read_text())
        names = [step["step"] for step in self.record["steps"]]
        expect(names == [name for name in STEPS if name in names], f"{fake}: the order is {names}")
        return {step["step"]: (step["result"], step["what"]) for step in self.record["steps"]}


def machines():
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1000):
            yield Machine(pathlib.Path(folder) / str(number))


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


def check_all(make):
    m = make()
    steps = m.check("none", 0)
    expect(list(steps) == STEPS, f"none: steps {list(steps)}")
    expect(all(steps[name][0] == "passed" for name in STEPS[:-2]), f"none: {steps}")
    before = json.loads((m.out / "before-kernels.json").read_text())["steps"]
    expect([step["step"] for step in before] == STEPS[:6], f"none: before the kernels there was {before}")
    calls = (m.folder / "calls").read_text()
    expect("--steps 30" in calls and "--precision bf16" in calls and "ops_test.cpp own" in calls and
           "ops_test.cpp cublaslt" in calls, f"none: calls {calls}")
    expect(calls.count("--source-file=") == 10 and calls.count("--source-file-exclude=") == 1, f"none: calls {calls}")
    expect("a first? with a comma" in calls, "none: a comma in a test's name would separate two filters")
    table = (m.out / "gpu-check.md").read_text()
    expect("commit abc123" in table and "| add | 5x3072 | bf16 | 2000.0 | 0.0 | 5 | 60 | 1000.0 | 0.50x |" in table,
           f"none: the table is {table}")
    expect("adamw: no memory" in steps["PyTorch"][1], f"none: {steps['PyTorch']}")
    expect("WARNING" not in m.text, "none: a warning")

    m = make()
    steps = m.check("own", 0)
    expect(steps["tests, cuBLASLt"][0] == "SKIPPED", f"own: {steps['tests, cuBLASLt']}")
    warning = "cuBLASLt does not multiply, the project's own kernels do: libcublasLt.so.13: no such file."
    expect(f"WARNING: {warning}" in m.text and f"**{warning}" in (m.out / "gpu-check.md").read_text(),
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
                              ("half-a-table", "kernels", "1 kernels, then status 1"),
                              ("odd-row", "kernels", "a row without the number median_s"),
                              ("odd-record", "kernels", "`bench kernels` wrote no rows"),
                              ("nonsense", "step, 124M", "gpu_check itself: decoder.py:")):
        m = make()
        steps = m.check(fake, 1, "--only", f"{step[:6]},opcodes")
        expect(steps[step][0] == "FAILED" and words in steps[step][1], f"{fake}: {steps[step]}")
        expect("opcodes" in m.error, f"{fake}: the steps after it did not run")
        if fake == "twin-crash":
            expect("wgmma: 2 cases, the same bits" in m.record["twins"], f"{fake}: {m.record['twins']}")
        if fake == "one-group":
            expect("TEST CASE:  gelu" in m.record["failed_tests"]["own: elementwise"], f"{fake}: no text of the failure")
    m = make()
    expect("--batch-size 8 --grad-accum 2" in m.check("memory", 0)["step, 1.5B"][1], "memory: no smaller batch")

    m = make()
    steps = m.check("hang", 4, "--seconds", 15)
    expect(list(steps) == STEPS and [steps[name][0] for name in STEPS[:4]] == ["passed"] * 3 + ["LATE"] and
           all(steps[name][0] == "LATE" for name in STEPS[4:11]), f"hang: {steps}")
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

    m = make()
    process = subprocess.Popen(m.command(), env=m.environment("hang"), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while not (m.folder / "calls.pids").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    text, error = process.communicate(timeout=60)
    expect(process.returncode == 143, f"SIGTERM: status {process.returncode}: {error}")
    expect("Traceback" not in text + error and "1 late" in text, f"SIGTERM: {text} {error}")
    expect(m.steps("SIGTERM").get("tests, own products") == ("LATE", "stopped by SIGTERM"), "SIGTERM: no result")
    expect(all_end((m.folder / "calls.pids").read_text().split()), "SIGTERM: it still runs")

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
    done = subprocess.run([sys.executable, root / "tools/gpu_pack", "--build", folder], capture_output=True, text=True)
    expect(done.returncode == 6 and "was configured without nvcc (ZG_CUDA=OFF); install the CUDA Toolkit" in
           done.stderr and "Traceback" not in done.stderr, f"gpu_pack: {done.returncode}: {done.stderr}")


source = machines()
check_all(lambda: next(source))
with tempfile.TemporaryDirectory() as temporary:
    check_pack(pathlib.Path(temporary))
print("\n".join(wrong) or "gpu_check and gpu_pack do as they say")
sys.exit(1 if wrong else 0)
