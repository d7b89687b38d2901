"""The programs that tools/gpu_check runs: unpacked from the archive of tools/gpu_pack, or of a build."""
import glob
import json
import os
import pathlib
import subprocess
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent.parent
RECORD = "pack.json"
# The libraries that the command opens if they are there, and the folders of Python packages for CUDA 12
# and 13 that have them.
OPENED = ("libcublasLt.so.1[23]", "libnccl.so.2")
PACKAGES = ("nvidia/cublas/lib", "nvidia/cu13/lib", "nvidia/nccl/lib")


class Unusable(Exception):
    """The reason why a folder is not a kit."""


class Kit:
    """Paths of the programs, the text to train on, and where the numbers come from."""

    def __init__(self, program, tests, twins, text, commit):
        self.program, self.tests, self.twins = program, tests, twins
        self.text, self.commit = text, commit
        self.twins_file = None  # a packed kit has the file; twins_emulated writes it for a build
        self.twins_writer = None

    @staticmethod
    def packed(folder):
        folder = pathlib.Path(folder).resolve()
        try:
            record = json.loads((folder / RECORD).read_text())
            commit = str(record["commit"])
            sizes = {str(name): int(size) for name, size in record["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise Unusable(f"{folder} has no usable {RECORD}; expected the folder that the archive of "
                           "tools/gpu_pack unpacks to") from None
        for name, size in sizes.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                raise Unusable(f"{file} is missing or has another size than when it was packed; "
                               "unpack the archive again")
        kit = Kit(folder / "bin/zerograd", folder / "bin/test_gpu", folder / "bin/twins_gpu",
                  folder / "LICENSE", commit)
        kit.twins_file = folder / "twins.bin"
        return kit

    @staticmethod
    def built(folder, commit):
        folder = pathlib.Path(folder).resolve()
        tests = folder / "tests/cuda"
        kit = Kit(folder / "tools/zerograd", tests / "test_gpu", tests / "twins_gpu", root / "LICENSE",
                  commit)
        kit.twins_writer = tests / "twins_emulated"
        return kit


def make_record(folder, commit, **more):
    """Writes the record of a packed kit: the commit, and each file with its size."""
    files = {str(file.relative_to(folder)): file.stat().st_size
             for file in sorted(folder.rglob("*")) if file.is_file()}
    (folder / RECORD).write_text(json.dumps({"commit": commit, **more, "files": files}, indent=1) + "\n")


def rehearsal(build, folder, commit):
    """A packed kit in `folder` whose programs run on the emulator."""
    build, folder = pathlib.Path(build).resolve(), pathlib.Path(folder)
    (folder / "bin").mkdir()
    for name, program in {"zerograd": "zerograd-emulated", "test_gpu": "test_cuda",
                          "twins_gpu": "twins_emulated"}.items():
        (folder / "bin" / name).symlink_to(build / "tests/cuda" / program)
    (folder / "LICENSE").symlink_to(root / "LICENSE")
    done = subprocess.run([folder / "bin/twins_gpu", "--write", folder / "twins.bin"], check=False,
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise Unusable(f"twins_emulated --write: {done.stderr.strip()}")
    make_record(folder, commit)
    return Kit.packed(folder)


def library_folders(python, seconds=20):
    """Folders of this Python's packages with cuBLASLt or NCCL, as pip installs them for PyTorch. Takes at most
    `seconds`."""
    code = "import json, site, sys; print(json.dumps([*sys.path, site.getusersitepackages()]))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=max(0.1, seconds),
                              check=True, cwd=tempfile.gettempdir())
        places = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    found = []
    for place in places if isinstance(places, list) else []:
        if not isinstance(place, str):
            continue
        for package in PACKAGES:
            folder = os.path.join(place or ".", package)
            has_library = any(glob.glob(os.path.join(glob.escape(folder), name)) for name in OPENED)
            if has_library and folder not in found:
                found.append(folder)
    return found


def environment_with(folders):
    """An environment in which the command also looks for libraries in these folders, after its other places."""
    before = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": ":".join([*filter(None, [before]), *folders])} if folders else {}
