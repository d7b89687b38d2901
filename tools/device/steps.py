"""The steps that tools/gpu_check and tools/hpu_check share, and what steps need."""
import json
import re
import tempfile

from device import rates, report, sequence
from device.kit import environment_with, library_folders, root
from device.programs import Failed, Late, NoDevice, Skipped, status_text


# A test prints this if device or machine lack what the step's variables ask for.
LACKS = re.compile(r"ZG_CUDA_MATMUL=cublaslt, but cuBLASLt is absent.*|ZG_HPU_VARIANT: this device has no .*")


class Steps:
    """A check of one device: one method for each step, which returns what it found, in words."""

    backend = ""  # of --device

    def __init__(self, kit, deadline, folder, out, python, rehearses):
        self.kit, self.deadline, self.folder, self.out = kit, deadline, folder, out
        self.python, self.rehearses = python, rehearses
        self.program = kit.programs["zerograd"]
        self.tests = kit.programs[f"test_{kit.device}"]
        self.libraries = library_folders(python, min(20, deadline.left())) if kit.device == "gpu" else []
        self.environment = {**environment_with(self.libraries), **kit.environment}
        self.record = {"schema": 3, "device": "", "commit": kit.commit, "rehearsal": rehearses, "warnings": [],
                       "library_folders": self.libraries}
        self.kernels, self.step = [], ""

    # --- helpers ---

    def run(self, command, limit=None, **environment):
        return self.deadline.run(command, limit, {**self.environment, **environment}, self.folder)

    def result_of(self, command, limit=None, **environment):
        return self.deadline.result_of(command, limit, {**self.environment, **environment},
                                       self.folder)

    def reason(self, ended):
        return self.deadline.no_end() if ended.cut else status_text(ended.status)

    def file(self, name):
        """A file beside the results, which another part can read."""
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / f"{self.kit.device}-{name}"

    def devices(self, **environment):
        """The lines of `zerograd info` about these devices. NoDevice if it says that there is none."""
        said = self.result_of([self.program, "info"], **environment)
        lines = [line.removeprefix(self.backend).strip() for line in said.splitlines()
                 if line.startswith(self.backend + " ")]
        if not lines:
            raise Failed(f"`zerograd info` names no device of {self.backend}")
        if lines[0].startswith("absent"):
            raise NoDevice(lines[0].removeprefix("absent:").strip())
        if not environment:
            self.record["device"] = lines[0]
        return lines

    # --- steps ---

    def faults(self):
        """Runs each probe in its own process, so that a crash does not end the others."""
        wrong, count = [], 0
        listed = self.result_of([self.tests, "--list-test-cases", "--test-case=probe:*"])
        probes = [line for line in listed.splitlines() if line.startswith("probe:")]
        if not probes:
            raise Failed(f"{self.tests.name} has no test case named probe:")
        for probe in probes:
            count += 1
            # A comma would separate two filters.
            ended = self.run([self.tests, "--test-case=" + probe.replace(",", "?")])
            if ended.cut or ended.status != 0:
                wrong.append(f"{probe}: {self.reason(ended)}: {ended.last_words(400)}")
        for name, problem in self.small_runs():
            count += 1
            if problem:
                wrong.append(f"{name}: {problem}")
        if wrong:
            raise Failed(f"{len(wrong)} of {count}: " + " | ".join(wrong))
        return f"{count} faults, copies and small runs as expected"

    def small_runs(self):
        """(name, problem or nothing) of runs of the command that take a second each."""
        train = [self.program, "train", *sequence.SORT, "--steps", "2", "--score-samples", "0", "--device",
                 self.backend]
        ended = self.run([*train, "--device-memory", "1MiB"])
        good = ended.status == 3 and "OutOfMemory" in ended.text
        yield "a limit of 1 MiB", "" if good else (f"{status_text(ended.status)}, expected 3 and "
                                                   f"OutOfMemory: {ended.last_words(300)}")
        first = None
        for name, flags in sequence.SAME_BITS.items():
            ended = self.run([*train, *flags])
            found = re.search(r"^param_hash (\S+)", ended.text, re.M)
            first = first or found
            if ended.status != 0 or ended.cut or not found:
                yield name, f"{status_text(ended.status)}: {ended.last_words(300)}"
            elif found[1] != first[1] and not self.may_differ(name):
                yield name, f"param_hash {found[1]}, with one rank {first[1]}"
            else:
                yield name, ""

    def may_differ(self, name):
        """Whether this run of SAME_BITS need not have the bits of the first on this device."""
        return False

    def tested(self, groups, environment):
        """Runs groups of test cases, {name: doctest's filter}. The record has all that a failed group printed."""
        if self.rehearses:
            groups = {"gelu": "--test-case=gelu*"}
        passed, wrong = 0, []
        for name, filters in groups.items():
            try:
                ended = self.run([self.tests, "--test-case-exclude=probe:*", filters], **environment)
            except Late as late:
                raise Late(f"{passed} test cases passed, then in {name}: {'; '.join([*wrong, str(late)])}") from None
            count = re.search(r"test cases: +(\d+) \| +(\d+) passed", ended.text)
            passed += int(count[2]) if count else 0
            if not ended.cut and ended.status == 0 and count and int(count[1]) > 0:
                continue
            lacking = LACKS.search(ended.text)
            if lacking:
                raise Skipped(lacking[0][:200])
            self.record.setdefault("failed_tests", {})[f"{self.step}: {name}"] = shortened(ended.text)
            error = re.search(r"^\S+: (?:FATAL )?ERROR: .*", ended.text, re.M)
            cases = list(dict.fromkeys(re.findall(r"^TEST CASE: +(.*)$", ended.text, re.M)))
            wrong.append(f"{name}: {self.reason(ended)}: {len(cases)} failed: {', '.join(cases[:2])}: "
                         f"{error[0][:200] if error else ended.last_words(200)}")
        if wrong:
            raise Failed(f"{passed} passed; " + " | ".join(wrong))
        return f"{passed} test cases"

    def gpt2(self):
        """Flags of a training of GPT-2 124M on the text; of a tiny one in a rehearsal."""
        model = sequence.SORT if self.rehearses else ["--data", self.kit.text, *sequence.GPT2, "--batch-size", "16"]
        return [*model, "--device", self.backend]

    def trained(self, steps, offload):
        """Trains GPT-2 on the text: the losses fall, and the memory is what the plan says."""
        with tempfile.TemporaryDirectory() as folder:
            metrics, memory, planned = (f"{folder}/{part}" for part in ("metrics", "memory", "planned"))
            flags = [*self.gpt2(), "--steps", 2 if self.rehearses else steps, *offload]
            self.result_of([self.program, "train", *flags, "--score-samples", "0", "--metrics", metrics,
                            "--memory-json", memory])
            self.result_of([self.program, "plan", *flags, "--memory-json", planned])
            rows = steps_of(metrics)
            with open(memory) as used, open(planned) as plan:
                as_planned = used.read() == plan.read()
        if len(rows) < 2:
            raise Failed(f"{len(rows)} steps in the metrics")
        seconds = sorted(row["step_s"] for row in rows[1:])
        median = seconds[len(seconds) // 2]
        first, last = rows[0]["loss"], rows[-1]["loss"]
        row = {"name": self.step, "step_s": median, "first_loss": first, "last_loss": last,
               "memory_as_planned": as_planned}
        words = f"{1e3 * median:.1f} ms a step, loss {first:.3f} to {last:.3f}"
        if not self.rehearses:
            row["tokens_per_s"] = sequence.TOKENS / median
            words += f", {row['tokens_per_s']:.0f} tokens/s"
        self.record.setdefault("training", []).append(row)
        if not as_planned:
            raise Failed(f"{words}; memory is not what the plan says")
        if not last < first and not self.rehearses:
            raise Failed(f"{words}; the loss did not fall")
        return words + "; memory as planned"

    def bench_step(self, model, batches, more=()):
        """Takes the first batch that fits in the device's memory."""
        if self.rehearses:
            model, batches = sequence.TINY, [["--batch-size", "1"]]
        out_of_memory, unsupported = 3, 6
        for batch in batches:
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                ended = self.run([self.program, "bench", "step", "--device", self.backend, *model, *batch, *more,
                                  "--json", file.name])
                if not ended.cut and ended.status == 0:
                    with open(file.name) as text:
                        row = json.load(text)
                    break
            if self.rehearses and ended.status == unsupported:
                raise Skipped(ended.last_words(200))
            if ended.cut or ended.status != out_of_memory:
                raise Failed(f"{self.reason(ended)}: {ended.last_words(300)}")
        else:
            raise Failed(f"no batch fits: {ended.last_words(300)}")
        self.record.setdefault("bench_step", {})[self.step] = row
        parts = "".join(f", {part['part']} {part['percent']:.0f} %" for part in row["profile"][:4])
        return (f"{1e3 * row['median_s']:.1f} ms a step, {row['tokens_per_s']:.0f} tokens/s, "
                f"{row['percent_of_limit'] or 0:.0f} % of the largest product ({' '.join(batch)}{parts})")

    def bench_kernels(self, wanted):
        if self.rehearses:
            wanted = "matmul NT 704x192x48" + wanted
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            ended = self.run([self.program, "bench", "kernels", "--device", self.backend, "--json", file.name, "--filter",
                              wanted])
            complete = not ended.cut and ended.status == 0
            if complete:
                with open(file.name) as text:
                    record = json.load(text)
                rows = [row for row in record["rows"] if row["median_s"]]  # the others did not fit in memory
            else:  # the JSON record is written at the end; the lines are printed as they are measured
                rows = rows_of_table(ended.text)
                record = {"rows": rows}
        if self.rehearses and "not an accelerator: times measured" in ended.text:
            raise Skipped(ended.last_words(200))
        self.kernels += map(report.kernel, rows)
        self.record.setdefault("kernels", {})[self.step] = record
        if complete:
            return f"{len(rows)} kernels"
        raise Failed(f"{len(rows)} kernels, then {self.reason(ended)}: {ended.last_words(300)}")

    def traced(self):
        """The time of each op in a traced step. Where launches are counted: beside what a plan predicts for it; then a
        peaks file gets the measured shares."""
        flags = self.gpt2()
        trace, counted = self.folder / "trace.json", self.folder / "kernels.json"
        self.result_of([self.program, "train", *flags, "--steps", "4", "--score-samples", "0", "--trace", trace,
                        "--trace-steps", "3:1"])
        found = rates.seconds_by_op(json.loads(trace.read_text()))
        if not found:
            raise Failed("the trace has no kernel")
        total = sum(seconds for _, seconds in found.values())
        words = f"kernels of a step {1e3 * total:.1f} ms"
        counts = None
        begin = next((file for name, file in sequence.PEAKS.items() if name in self.record["device"]), None)
        if begin is None:
            words += "; there is no peaks file of this device to begin with"
        else:
            begin = root / "bench/peaks" / begin
            plan = [self.program, "plan", *flags, "--kernels", counted, "--peaks"]
            self.result_of([*plan, begin])
            counts = json.loads(counted.read_text())
            fitted = rates.refitted(json.loads(begin.read_text()), counts, found, f"{self.record['device']}, measured",
                                    f"{'a rehearsal' if self.rehearses else 'a traced step of GPT-2 124M'}, commit "
                                    f"{self.kit.commit}; its kernels by op, from {begin.name}")
            self.file("peaks.json").write_text(json.dumps(fitted, indent=1) + "\n")
            before = counts["predicted"]["step_seconds"]
            self.result_of([*plan, self.file("peaks.json")])
            after = json.loads(counted.read_text())["predicted"]["step_seconds"]
            words += (f"; predicted by {begin.name} {1e3 * before:.1f} ms, by the measured shares in "
                      f"{self.file('peaks.json').name} {1e3 * after:.1f} ms")
        self.record["ops"] = rates.beside(counts, found)
        return words


def steps_of(metrics):
    with open(metrics) as lines:
        return [row for row in map(json.loads, lines) if "step_s" in row]


def shortened(text, begin=300_000, end=100_000):
    """The begin of a long text, where the first failure is, and its end."""
    return text if len(text) <= begin + end else f"{text[:begin]}\n[...]\n{text[-end:]}"


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
