"""The steps of tools/gpu_check, in the order in which they run: first the steps whose failure would stop all
others, and the most important results."""
import json
import re
import tempfile

from gpu.kit import environment_with, library_folders, root
from gpu.programs import Failed, Late, NoDevice, Skipped, status_text, tool

TOKENS = 16 * 1024  # of a training step
GPT2 = ["--model-type", "gpt2", "--tied", "--vocab-size", "50257", "--block-size", "1024", "--dropout", "0",
        "--precision", "bf16"]
SORT = ["--data", "sort", "--model-type", "gpt-nano", "--batch-size", "2"]
SANITIZED_TESTS = "*layer_norm*,*attention*,*reduce*,*matmul*,*cross_entropy*"
# Each group, given by source files, runs in its own process. So a CUDA error after which the context cannot be used,
# or a kernel that never ends, loses only the rest of its group.
TEST_GROUPS = {"attention": "*/kernels/attention/attention_test.cpp",
               "masks": "*/kernels/attention/attention_masks_test.cpp",
               "alibi, rope": "*/kernels/attention/alibi*,*/kernels/attention/rope*",
               "elementwise": "*/kernels/elementwise/*",
               "loss, matmul": "*/kernels/loss/*,*/kernels/matmul/*",
               "rows": "*/kernels/movement/*,*/kernels/norm/*,*/kernels/reduce/*",
               "optimizer": "*/kernels/optimizer/*",
               "ops": "*/kernels/ops_test.cpp"}
GROUPS_WITH_PRODUCTS = ("loss, matmul", "ops")


class Check:
    """One method for each step. It returns what it found, in words."""

    def __init__(self, kit, deadline, folder, python, rehearses):
        self.kit, self.deadline, self.folder = kit, deadline, folder
        self.python, self.rehearses = python, rehearses
        self.libraries = library_folders(python, min(20, deadline.left()))
        self.environment = environment_with(self.libraries)
        self.record = {"schema": 2, "commit": kit.commit, "rehearsal": rehearses, "warnings": [],
                       "library_folders": self.libraries}
        self.kernels, self.has_cublaslt = [], False

    def steps(self):
        return [("info", self.info), ("faults", self.faults), ("twins", self.twins),
                ("tests, own products", self.tests_own), ("tests, cuBLASLt", self.tests_cublaslt),
                ("training", self.training), ("kernels", self.bench_kernels), ("PyTorch", self.peers),
                ("step, 124M", self.step_small), ("step, 1.5B", self.step_large),
                ("training, offload", self.training_offload), ("opcodes", self.opcodes),
                ("sanitizers", self.sanitizers)]

    # --- helpers ---

    def run(self, command, limit, **environment):
        return self.deadline.run(command, limit, {**self.environment, **environment}, self.folder)

    def result_of(self, command, limit, **environment):
        return self.deadline.result_of(command, limit, {**self.environment, **environment},
                                       self.folder)

    def warn(self, text):
        self.record["warnings"].append(text)

    # --- steps ---

    def info(self):
        said = self.result_of([self.kit.program, "info"], 60)
        lines = [line.removeprefix("cuda").strip() for line in said.splitlines()
                 if line.startswith("cuda ")]
        if not lines:
            raise Failed("`zerograd info` names no CUDA device")
        if lines[0].startswith("absent"):
            raise NoDevice(lines[0].removeprefix("absent:").strip())
        device = self.record["device"] = lines[0]
        self.has_cublaslt = "cuBLASLt " in device
        if not self.has_cublaslt:
            reason = re.search(r"own matmul \((.*?)\), ", device + ", ")
            self.warn("cuBLASLt does not multiply, the project's own kernels do: "
                      f"{reason[1] if reason else device}. Every number below is of these kernels.")
        words = [device]
        query = "name,driver_version,memory.total,clocks.max.sm,power.limit"
        try:
            words.append(self.result_of([tool("nvidia-smi"), f"--query-gpu={query}",
                                         "--format=csv,noheader"], 20).strip().splitlines()[0])
        except (Skipped, Failed, IndexError) as reason:
            words.append(str(reason))
        if self.libraries:
            words.append(f"libraries of Python packages: {', '.join(self.libraries)}")
        self.record["environment"] = words
        return "; ".join(words)

    def faults(self):
        """Runs each probe in its own process, so that a crash does not end the others."""
        wrong, count = [], 0
        listed = self.result_of([self.kit.tests, "--list-test-cases", "--test-case=probe:*"], 20)
        probes = [line for line in listed.splitlines() if line.startswith("probe:")]
        if not probes:
            raise Failed("test_gpu has no test case named probe:")
        for probe in probes:
            count += 1
            # A comma would separate two filters.
            ended = self.run([self.kit.tests, "--test-case=" + probe.replace(",", "?")], 15)
            if ended.cut or ended.status != 0:
                wrong.append(f"{probe}: {'no end in 15 s' if ended.cut else status_text(ended.status)}: "
                             f"{ended.last_words(400)}")
        for name, problem in self.small_runs():
            count += 1
            if problem:
                wrong.append(f"{name}: {problem}")
        if wrong:
            raise Failed(f"{len(wrong)} of {count}: " + " | ".join(wrong))
        return f"{count} faults, copies and small runs as expected"

    def small_runs(self):
        """(name, problem or nothing) of runs of the command that take a second each."""
        train = [self.kit.program, "train", *SORT, "--steps", "2", "--score-samples", "0", "--device",
                 "cuda"]
        ended = self.run([*train, "--device-memory", "1MiB"], 20)
        good = ended.status == 3 and "OutOfMemory" in ended.text
        yield "a limit of 1 MiB", "" if good else (f"{status_text(ended.status)}, expected 3 and "
                                                   f"OutOfMemory: {ended.last_words(300)}")
        hashes = {}
        for name, flags in {"one rank": ["--grad-accum", "2"],
                            "optimizer and parameters on the host":
                                ["--grad-accum", "2", "--zero-stage", "3", "--offload-optimizer", "host",
                                 "--offload-param", "host"],
                            "two ranks": ["--ranks", "2", "--zero-stage", "2"]}.items():
            ended = self.run([*train, *flags], 30)
            found = re.search(r"^param_hash (\S+)", ended.text, re.M)
            hashes[name] = found[1] if found else None
            if ended.status != 0 or ended.cut or not found:
                yield name, f"{status_text(ended.status)}: {ended.last_words(300)}"
            elif hashes[name] != hashes["one rank"]:
                yield name, f"param_hash {hashes[name]}, with one rank {hashes['one rank']}"
            else:
                yield name, ""

    def twins(self):
        file = self.kit.twins_file
        if file is None:
            file = self.folder / "twins.bin"
            self.result_of([self.kit.twins_writer, "--write", file], 120)
        lines, reason, after = [], "", []
        while True:
            ended = self.run([self.kit.twins, "--check", file, *after], 60)
            lines += ended.text.strip().splitlines()
            if ended.cut or ended.status != 0:
                reason = reason or ("no end in 60 s" if ended.cut else status_text(ended.status))
            if not ended.cut and ended.status in (0, 1, 2, 6) or not lines:
                break
            # The last line names a twin that crashed or did not end. A new process goes on after it.
            if after == [lines[-1].split(":")[0]]:
                break
            after = [lines[-1].split(":")[0]]
        self.record["twins"] = lines
        wrong = [line for line in lines if "the same bits" not in line and "SKIPPED" not in line]
        same = [line for line in lines if "the same bits" in line]
        if reason or wrong or not same:
            raise Failed(f"{reason or 'status 0'}: {' | '.join(wrong) or 'nothing was compared'}")
        skipped = len(lines) - len(same)
        return f"{len(same)} instructions, the same bits" + (f", {skipped} skipped" if skipped else "")

    def tested(self, products, groups):
        """Runs groups of test cases, {name: doctest's filters}. The record has all that a failed group printed."""
        if self.rehearses:
            groups = {"gelu": ["--test-case=gelu*"]}
        passed, wrong, limit = 0, [], 90
        for name, filters in groups.items():
            try:
                ended = self.run([self.kit.tests, "--test-case-exclude=probe:*", *filters], limit,
                                 ZG_CUDA_MATMUL=products)
            except Late as late:
                raise Late(f"{passed} test cases passed, then in {name}: {'; '.join([*wrong, str(late)])}") from None
            count = re.search(r"test cases: +(\d+) \| +(\d+) passed", ended.text)
            passed += int(count[2]) if count else 0
            if not ended.cut and ended.status == 0 and count and int(count[1]) > 0:
                continue
            self.record.setdefault("failed_tests", {})[f"{products}: {name}"] = shortened(ended.text)
            reason = f"no end in {limit} s" if ended.cut else status_text(ended.status)
            error = re.search(r"^\S+: (?:FATAL )?ERROR: .*", ended.text, re.M)
            cases = list(dict.fromkeys(re.findall(r"^TEST CASE: +(.*)$", ended.text, re.M)))
            wrong.append(f"{name}: {reason}: {len(cases)} failed: {', '.join(cases[:2])}: "
                         f"{error[0][:200] if error else ended.last_words(200)}")
        if wrong:
            raise Failed(f"{passed} passed; " + " | ".join(wrong))
        return f"{passed} test cases"

    def tests_own(self):
        groups = {name: ["--source-file=" + files] for name, files in TEST_GROUPS.items()}
        groups["others"] = ["--source-file-exclude=" + ",".join(TEST_GROUPS.values())]
        return self.tested("own", groups)

    def tests_cublaslt(self):
        if not self.has_cublaslt:
            raise Skipped("cuBLASLt is absent")
        # The tests of other groups multiply no matrices.
        return self.tested("cublaslt", {name: ["--source-file=" + TEST_GROUPS[name]] for name in GROUPS_WITH_PRODUCTS})

    def training(self):
        return self.trained("all on the GPU", [], 2 if self.rehearses else 30)

    def training_offload(self):
        return self.trained("optimizer on the host", ["--zero-stage", "2", "--offload-optimizer",
                                                      "host"], 2 if self.rehearses else 10)

    def trained(self, name, offload, steps):
        """Trains GPT-2 on the text: the losses fall, and the memory is what the plan says."""
        model = SORT if self.rehearses else ["--data", self.kit.text, *GPT2, "--batch-size", "16"]
        with tempfile.TemporaryDirectory() as folder:
            metrics, memory, planned = (f"{folder}/{part}" for part in ("metrics", "memory", "planned"))
            flags = [*model, "--steps", steps, "--device", "cuda", *offload]
            self.result_of([self.kit.program, "train", *flags, "--score-samples", "0", "--metrics",
                            metrics, "--memory-json", memory], 100)
            self.result_of([self.kit.program, "plan", *flags, "--memory-json", planned], 60)
            with open(metrics) as lines:
                rows = [row for row in map(json.loads, lines) if "step_s" in row]
            with open(memory) as used, open(planned) as plan:
                as_planned = used.read() == plan.read()
        if len(rows) < 2:
            raise Failed(f"{name}: {len(rows)} steps in the metrics")
        seconds = sorted(row["step_s"] for row in rows[1:])
        median = seconds[len(seconds) // 2]
        first, last = rows[0]["loss"], rows[-1]["loss"]
        row = {"name": name, "step_s": median, "first_loss": first, "last_loss": last,
               "memory_as_planned": as_planned}
        words = f"{1e3 * median:.1f} ms a step, loss {first:.3f} to {last:.3f}"
        if not self.rehearses:
            row["tokens_per_s"] = TOKENS / median
            words += f", {row['tokens_per_s']:.0f} tokens/s"
        self.record.setdefault("training", []).append(row)
        if not as_planned:
            raise Failed(f"{words}; memory is not what the plan says")
        if not last < first and not self.rehearses:
            raise Failed(f"{words}; the loss did not fall")
        return words + "; memory as planned"

    def bench_kernels(self):
        flags = ["--filter", "matmul NT 704x192x48"] if self.rehearses else []
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            ended = self.run([self.kit.program, "bench", "kernels", "--device", "cuda", "--json",
                              file.name, *flags], 150)
            if not ended.cut and ended.status == 0:
                with open(file.name) as text:
                    self.record["kernels"] = json.load(text)
                self.kernels = measured(self.record["kernels"])
                return f"{len(self.kernels)} kernels"
        # The JSON record is written at the end; the lines are printed as they are measured.
        self.kernels = rows_of_table(ended.text)
        self.record["kernels"] = {"rows": self.kernels}
        reason = "cut after 150 s" if ended.cut else f"{status_text(ended.status)}: " \
            f"{ended.last_words(300)}"
        raise Failed(f"{len(self.kernels)} kernels, then {reason}")

    def peers(self):
        flags = ["--rehearse"] if self.rehearses else []
        # PyTorch finds its own libraries.
        ended = self.deadline.run([self.python, root / "bench/peers/gpu.py", *flags], 100)
        rows, problems = {}, []
        for line in ended.text.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if not isinstance(row, dict):
                continue
            if "text" in row and is_number(row.get("median_s")):
                rows[row["text"]] = row
            elif "problem" in row and "text" in row:
                problems.append(f"{row['text']}: {row['problem']}")
            elif "torch" in row:
                self.record["torch"] = row["torch"]
        self.record["peers"] = {"rows": rows, "problems": problems}
        compared = 0
        for row in self.kernels:
            peer = rows.get(f"{row['case']} {row['shape']} {row['dtype']}")
            if peer:
                row["peer_s"] = peer["median_s"]
                compared += 1
        if not rows and ("SKIPPED" in ended.text or "No module named" in ended.text):
            raise Skipped("this Python has no PyTorch that sees a GPU")
        if not rows:
            raise Failed(f"{status_text(ended.status)}: {ended.last_words(300)}")
        words = [f"{len(rows)} measurements, {compared} beside kernels above"]
        words += [f"{name}: {1e3 * row['median_s']:.1f} ms" for name, row in rows.items()
                  if name.startswith("step ")]
        return "; ".join(words + problems + (["cut after 100 s"] if ended.cut else []))

    def step_small(self):
        return self.bench_step("124M", GPT2, [["--batch-size", "16"]])

    def step_large(self):
        return self.bench_step("1.5B", ["--model-type", "gpt2-xl", *GPT2[2:]],
                               [["--batch-size", "16"],
                                ["--batch-size", "8", "--grad-accum", "2"],
                                ["--batch-size", "4", "--grad-accum", "4"]])

    def bench_step(self, name, model, batches):
        """Takes the first batch that fits in the device's memory."""
        if self.rehearses:
            model, batches = ["--n-layer", "1", "--n-head", "1", "--n-embd", "16", "--block-size", "8",
                              "--vocab-size", "16", "--steps", "1", "--warm-up", "0"], [["--batch-size",
                                                                                         "1"]]
        out_of_memory = 3
        for batch in batches:
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                ended = self.run([self.kit.program, "bench", "step", "--device", "cuda", *model, *batch,
                                  "--json", file.name], 90)
                if not ended.cut and ended.status == 0:
                    with open(file.name) as text:
                        row = json.load(text)
                    break
            if ended.cut or ended.status != out_of_memory:
                raise Failed(f"{name}: {'cut after 90 s' if ended.cut else status_text(ended.status)}: "
                             f"{ended.last_words(300)}")
        else:
            raise Failed(f"{name}: no batch fits: {ended.last_words(300)}")
        self.record.setdefault("bench_step", {})[name] = row
        parts = "".join(f", {part['part']} {part['percent']:.0f} %" for part in row["profile"][:4])
        return (f"{1e3 * row['median_s']:.1f} ms a step, {row['tokens_per_s']:.0f} tokens/s, "
                f"{row['percent_of_limit'] or 0:.0f} % of the largest product ({' '.join(batch)}{parts})")

    def opcodes(self):
        said = self.result_of([tool("cuobjdump"), "-sass", self.kit.twins], 60)
        names = {name: len(re.findall(rf"\b{name}\b", said))
                 for name in ("HMMA", "LDSM", "LDGSTS", "HGMMA", "UTMALDG")}
        self.record["opcodes"] = names
        if not all(names.values()):
            raise Failed(f"cuobjdump names none of {[n for n, c in names.items() if not c]}")
        return ", ".join(f"{count} {name}" for name, count in names.items())

    def sanitizers(self):
        """ZG_TEST_EXACT: each operand is an allocation, so that memcheck sees an overrun of it."""
        sanitizer = tool("compute-sanitizer")
        tests = [self.kit.tests, f"--test-case={SANITIZED_TESTS}"]
        twins = [self.kit.twins, "--check", self.kit.twins_file or self.folder / "twins.bin"]
        clean, wrong, cut = [], [], []
        for kind, program in (("memcheck", tests), ("racecheck", twins), ("synccheck", twins),
                              ("racecheck", tests)):
            try:
                ended = self.run([sanitizer, "--tool", kind, "--error-exitcode", "9", *program], 90,
                                 ZG_TEST_EXACT="1", ZG_CUDA_MATMUL="own")
            except Late:
                raise Late(f"clean: {', '.join(clean) or 'nothing'}; {'; '.join(wrong)}") from None
            if "Device not supported" in ended.text:
                raise Skipped("compute-sanitizer is refused on this device")
            name = f"{kind} of {program[0].name}"
            errors = [line.strip("= ") for line in ended.text.splitlines()
                      if line.startswith("=========") and line.strip("= ")]
            if ended.cut and not any(line.startswith("at ") for line in errors):
                cut.append(f"{name} was cut after 90 s and had found nothing")
            elif ended.cut or ended.status != 0:
                reason = "cut after 90 s" if ended.cut else status_text(ended.status)
                wrong.append(f"{name}: {reason}: {' '.join(errors[:6])[:400]}")
            else:
                clean.append(name)
        if wrong:
            raise Failed("; ".join(wrong + cut))
        return "; ".join([f"nothing found by {', '.join(clean) or 'a tool that ended'}", *cut])


def shortened(text, begin=300_000, end=100_000):
    """The begin of a long text, where the first failure is, and its end."""
    return text if len(text) <= begin + end else f"{text[:begin]}\n[...]\n{text[-end:]}"


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def measured(record):
    """The rows of a record of `bench kernels`. Failed if one lacks a value that the table shows."""
    rows = record.get("rows") if isinstance(record, dict) else None
    if not isinstance(rows, list):
        raise Failed("`bench kernels` wrote no rows")
    for row in rows:
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("case", "shape", "dtype")):
            raise Failed(f"`bench kernels` wrote a row without case, shape and dtype: {str(row)[:200]}")
        numbers = ("median_s", "flops_per_s", "bytes_per_s") if row.get("median_s") else ()
        wrong = [key for key in numbers if not is_number(row.get(key))]
        if row.get("percent_of_limit") is not None and not is_number(row["percent_of_limit"]):
            wrong.append("percent_of_limit")
        if wrong:
            raise Failed(f"`bench kernels` wrote a row without the number {wrong[0]}: {str(row)[:200]}")
    return rows


def rows_of_table(text):
    """The rows of `bench kernels` that were printed."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 11 or cells[0].startswith(("limit:", "case", "---")):
            continue
        try:
            rows.append({"case": cells[0], "shape": cells[1], "dtype": cells[2],
                         "median_s": 1e-3 * float(cells[4]), "flops_per_s": 1e9 * float(cells[6] or 0),
                         "bytes_per_s": 1e9 * float(cells[7] or 0), "limit": cells[8],
                         "percent_of_limit": float(cells[9].rstrip(" %")) if cells[9] else None})
        except ValueError:  # a case that did not fit says so in its row
            continue
    return rows
