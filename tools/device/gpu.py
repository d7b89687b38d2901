"""The steps of tools/gpu_check that only a GPU has; steps.py has the others, sequence.py their order."""
import csv
import json
import re
import tempfile

from device import sequence
from device.kit import root
from device.programs import Failed, Skipped, status_text, tool
from device.steps import Steps


class Gpu(Steps):
    backend = "cuda"

    def info(self):
        device = self.devices()[0]
        if "cuBLASLt " not in device:
            reason = re.search(r"own matmul \((.*?)\), ", device + ", ")
            self.record["warnings"].append("cuBLASLt does not multiply, the project's own kernels do: "
                                           f"{reason[1] if reason else device}. Every number below is of these kernels.")
        words = [device]
        query = "name,driver_version,memory.total,clocks.max.sm,power.limit"
        try:
            words.append(self.result_of([tool("nvidia-smi"), f"--query-gpu={query}",
                                         "--format=csv,noheader"]).strip().splitlines()[0])
        except (Skipped, Failed, IndexError) as reason:
            words.append(str(reason))
        if self.libraries:
            words.append(f"libraries of Python packages: {', '.join(self.libraries)}")
        self.record["environment"] = words
        self.record["opcodes"] = self.kit.record.get("opcodes")  # counted when the kit was packed
        return "; ".join(words)

    def twins(self):
        file = self.kit.twins_file
        if file is None:
            file = self.folder / "twins.bin"
            self.result_of([self.kit.twins_writer, "--write", file])
        lines, reason, after = [], "", []
        while True:
            ended = self.run([self.kit.programs["twins_gpu"], "--check", file, *after])
            lines += ended.text.strip().splitlines()
            if ended.cut or ended.status != 0:
                reason = reason or self.reason(ended)
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

    def repeated(self):
        """Two runs of three steps at full size, where cuBLASLt may split sums: they must give the same bits."""
        hashes = []
        for _ in range(2):
            said = self.result_of([self.program, "train", *self.gpt2(), "--steps", "3", "--score-samples", "0"])
            hashes += re.findall(r"^param_hash (\S+)", said, re.M)
        if len(hashes) != 2 or hashes[0] != hashes[1]:
            raise Failed(f"param_hash of two equal runs: {' and '.join(hashes) or 'none was printed'}")
        return f"param_hash {hashes[0]}, twice"

    def algorithms(self):
        if "cuBLASLt " not in self.record["device"]:
            raise Skipped("cuBLASLt is absent")
        said = self.result_of([self.program, "bench", "matmul-algorithms", *self.gpt2(), "--out",
                               self.file("algorithms.json"), *(["--rounds", "1"] if self.rehearses else [])])
        self.record["algorithms"] = said.splitlines()
        return f"{self.file('algorithms.json').name}: {said.strip().splitlines()[-1]}"

    def step_algorithms(self):
        file = self.file("algorithms.json")
        if not file.exists():
            raise Skipped(f"there is no {file.name}, which the part truth writes")
        return self.bench_step(sequence.GPT2, sequence.BATCHES[:1], ["--matmul-algorithms", file])

    def measured_peers(self, kind):
        # PyTorch finds its own libraries.
        ended = self.deadline.run([self.python, root / "bench/peers/gpu.py", kind,
                                   *(["--rehearse"] if self.rehearses else [])])
        rows, problems = {}, []
        for line in ended.text.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "median_s" in row:
                rows[row["text"]] = row
            elif isinstance(row, dict) and "problem" in row:
                problems.append(f"{row['text']}: {row['problem']}")
            elif isinstance(row, dict):
                self.record.update(row)  # the version
        self.record.setdefault("peers", {})[kind] = {"rows": rows, "problems": problems}
        if not rows and ("SKIPPED" in ended.text or "No module named" in ended.text):
            raise Skipped("this Python has no PyTorch that sees a GPU")
        if not rows:
            raise Failed(f"{status_text(ended.status)}: {ended.last_words(300)}")
        compared = 0
        for row in self.kernels:
            peer = rows.get(f"{row['case']} {row['shape']} {row['dtype']}")
            if peer:
                row["peer_s"] = peer["median_s"]
                compared += 1
        words = [f"{len(rows)} measurements, {compared} beside kernels"]
        words += [f"{name}: {1e3 * row['median_s']:.1f} ms" for name, row in rows.items()
                  if name.startswith("step")]
        return "; ".join(words + problems + ([f"the program {self.deadline.no_end()}"] if ended.cut else []))

    def speed_of_light(self):
        """Nsight Compute's shares of the card's limits, for one launch of each kernel and size in a step of one block.
        It must not change clocks."""
        ncu = tool("ncu")
        flags = [*sequence.GPT2_BLOCK, "--batch-size", "16", "--device", "cuda", "--data", self.kit.text]
        said = self.result_of([ncu, "--clock-control", "none", "--section", "SpeedOfLight", "--csv", "--kernel-name",
                               f"regex:^({'|'.join(sequence.NSIGHT_KERNELS)})$", "--filter-mode", "per-launch-config",
                               "--launch-count", "1", self.program, "train", *flags, "--steps", "1", "--score-samples",
                               "0"])
        begin = said.find('"ID"')
        rows = {}
        for row in csv.DictReader(said[begin:].splitlines()) if begin >= 0 else ():
            value = (row.get("Metric Value") or "").replace(",", "")
            try:
                rows.setdefault(row["ID"], {"kernel": row["Kernel Name"], "grid": row["Grid Size"]})[
                    f"{row['Metric Name']} {row['Metric Unit']}".strip()] = float(value)
            except (KeyError, ValueError):
                continue
        self.record["speed_of_light"] = list(rows.values())
        if not rows:
            raise Failed(f"ncu named no kernel; it printed last: {said.strip()[-300:]}")
        return f"{len(rows)} launches of {len({row['kernel'] for row in rows.values()})} kernels"

    def sanitizers(self):
        """ZG_TEST_EXACT: each operand is an allocation, so that memcheck sees an overrun of it."""
        tests = [self.tests, f"--test-case={sequence.SANITIZED_TESTS}"]
        twins = [self.kit.programs["twins_gpu"], "--check", self.kit.twins_file or self.folder / "twins.bin"]
        words, wrong = [], []
        for kind, program in (("memcheck", tests), ("racecheck", twins), ("synccheck", twins)):
            ended = self.run([tool("compute-sanitizer"), "--tool", kind, "--error-exitcode", "9", *program],
                             ZG_TEST_EXACT="1", ZG_CUDA_MATMUL="own")
            if "Device not supported" in ended.text:
                raise Skipped("compute-sanitizer is refused on this device")
            errors = [line.strip("= ") for line in ended.text.splitlines() if line.startswith("=========")]
            found = ended.status != 0 if not ended.cut else any(line.startswith("at ") for line in errors)
            words.append(f"{kind} of {program[0].name} {self.reason(ended) if ended.cut or found else 'is clean'}")
            if found:
                wrong.append(f"{words[-1]}: {' '.join(errors)[:400]}")
        if wrong:
            raise Failed("; ".join(wrong))
        return "; ".join(words)
