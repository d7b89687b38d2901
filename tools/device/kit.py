"""The programs that tools/gpu_check and tools/hpu_check run: unpacked from an archive of tools/gpu_pack or
tools/hpu_pack, or of a build."""
import glob
import json
import os
import pathlib
import subprocess
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent.parent
RECORD = "pack.json"
# {device: {program: its place in a build}}: of a packed folder, of a check in the build itself, of a rehearsal.
PACKED = {"gpu": {"zerograd": "tests/zerograd_packed", "test_gpu": "tests/cuda/test_gpu",
                  "twins_gpu": "tests/cuda/twins_gpu"},
          "hpu": {"zerograd": "tests/zerograd_packed", "test_hpu": "tests/hpu/test_hpu",
                  "test_hpu_driver": "tests/hpu/test_hpu_driver"}}
BUILT = {device: {**programs, "zerograd": "tools/zerograd"} for device, programs in PACKED.items()}
REHEARSED = {"gpu": {"zerograd": "tests/cuda/zerograd-emulated", "test_gpu": "tests/cuda/test_cuda",
                     "twins_gpu": "tests/cuda/twins_emulated"},
             "hpu": BUILT["hpu"]}
# Targets of a build for a check, and for a rehearsal.
TARGETS = {"gpu": (["gpu_check_parts", "zerograd_command"],
                   ["twins_emulated", "zerograd_command_emulated", "test_cuda"]),
           "hpu": (["hpu_check_parts", "zerograd_command"],) * 2}
TEST_DRIVER = "tests/fakes/level_zero/libze_test_driver.so"
# The libraries that the command opens if they are there, and the folders of Python packages for CUDA 12
# and 13 that have them.
OPENED = ("libcublasLt.so.1[23]", "libnccl.so.2")
PACKAGES = ("nvidia/cublas/lib", "nvidia/cu13/lib", "nvidia/nccl/lib")


class Unusable(Exception):
    """The reason why a folder is not a kit."""


class Kit:
    """Paths of the programs by name, the text to train on, and where the numbers come from."""

    def __init__(self, device, programs, commit, record=None):
        self.device, self.programs, self.commit, self.record = device, programs, commit, record or {}
        self.text = root / "LICENSE"
        self.environment = {}
        self.twins_file = None  # a packed kit has the file; twins_emulated writes it for a build
        self.twins_writer = None

    @staticmethod
    def packed(device, folder):
        folder = pathlib.Path(folder).resolve()
        try:
            record = json.loads((folder / RECORD).read_text())
            commit, packed_for = str(record["commit"]), str(record["device"])
            sizes = {str(name): int(size) for name, size in record["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise Unusable(f"{folder} has no usable {RECORD}; expected the folder that the archive of "
                           f"tools/{device}_pack unpacks to") from None
        if packed_for != device:
            raise Unusable(f"{folder} was packed by tools/{packed_for}_pack; expected one of tools/{device}_pack, or run "
                           f"tools/{packed_for}_check")
        for name, size in sizes.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                raise Unusable(f"{file} is missing or has another size than when it was packed; "
                               "unpack the archive again")
        kit = Kit(device, {name: folder / "bin" / name for name in PACKED[device]}, commit, record)
        kit.text, kit.twins_file = folder / "LICENSE", folder / "twins.bin"
        return kit

    @staticmethod
    def built(device, folder, commit):
        folder = pathlib.Path(folder).resolve()
        kit = Kit(device, {name: folder / place for name, place in BUILT[device].items()}, commit)
        kit.twins_writer = folder / "tests/cuda/twins_emulated"
        return kit


def make_record(folder, device, commit, **more):
    """Writes the record of a packed kit: device, commit, and each file with its size."""
    files = {str(file.relative_to(folder)): file.stat().st_size
             for file in sorted(folder.rglob("*")) if file.is_file()}
    record = {"device": device, "commit": commit, **more, "files": files}
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")


def rehearsal(device, build, folder, commit):
    """A packed kit in `folder` whose programs run on the emulator of the device."""
    build, folder = pathlib.Path(build).resolve(), pathlib.Path(folder)
    (folder / "bin").mkdir()
    for name, place in REHEARSED[device].items():
        (folder / "bin" / name).symlink_to(build / place)
    (folder / "LICENSE").symlink_to(root / "LICENSE")
    if device == "gpu":
        done = subprocess.run([folder / "bin/twins_gpu", "--write", folder / "twins.bin"], check=False,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise Unusable(f"twins_emulated --write: {done.stderr.strip()}")
    make_record(folder, device, commit)
    kit = Kit.packed(device, folder)
    if device == "hpu":
        kit.environment = {"ZE_ENABLE_ALT_DRIVERS": str(build / TEST_DRIVER)}
    return kit


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
