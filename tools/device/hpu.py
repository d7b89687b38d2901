"""The steps of tools/hpu_check that only an HPU has; steps.py has the others, sequence.py their order."""
import glob
import os
import pathlib
import re
import tempfile

from device import sequence
from device.programs import Failed
from device.steps import Steps, shortened, steps_of

# Intel's driver (NEO), its compiler (IGC) and the loader, as files and as packages.
LIBRARIES = ("libze_loader.so.1*", "libze_intel_gpu*.so*", "libigc.so*", "libigdfcl.so*", "libigdgmm.so*")
FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/opt/intel/lib")
PACKAGES = re.compile(r"^\S*(?:level-zero|libze|intel-opencl|igc|compute-runtime|gmmlib)\S* \S+$", re.M)
LIST_PACKAGES = r"dpkg-query -W -f '${Package} ${Version}\n'; rpm -qa --qf '%{NAME} %{VERSION}\n'"
KERNEL_DRIVERS = ("i915", "xe")


class Hpu(Steps):
    backend = "hpu"

    def info(self):
        """Versions of all that lies between the command and the device; devices under both hierarchies."""
        words = [self.devices()[0], f"kernel {os.uname().release}"]
        for name in KERNEL_DRIVERS:
            folder = pathlib.Path("/sys/module") / name
            if folder.exists():
                version = folder / "version"
                words.append(f"{name} {version.read_text().strip() if version.exists() else 'of this kernel'}")
        files = {os.path.realpath(file) for folder in FOLDERS for name in LIBRARIES for file in glob.glob(f"{folder}/{name}")}
        packages = PACKAGES.findall(self.run(["sh", "-c", LIST_PACKAGES]).text)
        self.record["environment"] = words + sorted(files) + sorted(packages)
        words += [", ".join(sorted(map(os.path.basename, files))) or "no library of the driver in the usual folders"]
        for hierarchy in ("FLAT", "COMPOSITE"):
            lines = self.devices(ZE_FLAT_DEVICE_HIERARCHY=hierarchy)
            self.record.setdefault("hierarchies", {})[hierarchy] = lines
            words.append(f"{hierarchy}: {len(lines)} devices")
        return "; ".join(words)

    def may_differ(self, name):
        return "on the host" in name and "not correctly rounded" in self.record["device"]

    def built_in_functions(self):
        """OpenCL's functions, sub-groups and DPAS, without the library."""
        ended = self.run([self.kit.programs["test_hpu_driver"], "--source-file=*builtins_test.cpp,*sub_groups_test.cpp"])
        count = re.search(r"test cases: +(\d+) \| +(\d+) passed", ended.text)
        if ended.cut or ended.status != 0 or not count:
            self.record.setdefault("failed_tests", {})["built-in functions"] = shortened(ended.text)
            raise Failed(f"{self.reason(ended)}: {ended.last_words(300)}")
        return f"{count[2]} test cases, as on the host"

    def beside_cpu(self):
        """A small model learns as on the CPU, in each precision."""
        words, wrong = [], []
        for precision, bound in sequence.CPU_LOSSES.items():
            losses = []
            for backend in ("cpu", self.backend):
                with tempfile.NamedTemporaryFile() as metrics:
                    self.result_of([self.program, "train", *sequence.SORT, "--steps", "20", "--score-samples", "0",
                                    "--precision", precision, "--device", backend, "--metrics", metrics.name])
                    losses.append(steps_of(metrics.name)[-1]["loss"])
            words.append(f"{precision}: loss {losses[1]:.4f}, on the CPU {losses[0]:.4f}")
            if not abs(losses[0] - losses[1]) <= bound:
                wrong.append(f"{words[-1]}, expected within {bound}")
        if wrong:
            raise Failed("; ".join(wrong))
        return "; ".join(words)
