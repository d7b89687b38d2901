#!/usr/bin/env python3
"""Checks that C++ and CUDA sources are as clang-format leaves them. Versions of clang-format differ, so another major
version than MAJOR is skipped.

usage: check_format.py SOURCE_DIR     prints what it finds; `--planted` checks that it finds a planted mistake
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MAJOR = 14
FOLDERS = ("runtime", "kernels", "autograd", "zero", "models", "tools", "bench", "tests")
FORMATTED = {".h", ".cpp", ".cu", ".cuh"}
SKIPPED = ("tests/reference/fixtures", "tests/fuzz/corpus", "bench/results")
STYLE = pathlib.Path(__file__).resolve().parent.parent / ".clang-format"
BATCH = 50  # files of one call
FINDING = re.compile(r"^(\S.*):(\d+):\d+: error: code should be clang-formatted", re.M)


def skip(reason):
    print(f"SKIPPED: format ({reason})")
    sys.exit(0)


def formatter():
    """The path of clang-format; skips the check without the right one."""
    path = shutil.which(f"clang-format-{MAJOR}") or shutil.which("clang-format")
    if not path:
        skip("clang-format is missing; tools/install-packages test")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d+)", version)
    if not found or int(found[1]) != MAJOR:
        skip(f"expected clang-format {MAJOR}, got {version.strip() or 'no version'}")
    return path


def problems_of(tool, root, paths):
    """One line for each file that clang-format would change: its first line that differs."""
    result = subprocess.run([tool, f"--style=file:{STYLE}", "--dry-run", "-Werror", *paths], cwd=root,
                            capture_output=True, text=True)
    first = {}
    for path, line in FINDING.findall(result.stderr):
        first.setdefault(path, line)
    if result.returncode != 0 and not first:
        return [f"clang-format returned {result.returncode}: {result.stderr.strip()}"]
    return [f"{path}:{line}: clang-format changes this line; run clang-format -i {path}"
            for path, line in first.items()]


def check(tool, root):
    paths = sorted(path.relative_to(root).as_posix() for folder in FOLDERS for path in (root / folder).rglob("*")
                   if path.suffix in FORMATTED and path.is_file() and not path.is_symlink())
    paths = [path for path in paths if not path.startswith(SKIPPED)]
    if not paths:
        return [f"{root}: no sources found"], 0
    batches = [paths[i:i + BATCH] for i in range(0, len(paths), BATCH)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda batch: problems_of(tool, root, batch), batches)
    return [problem for batch in found for problem in batch], len(paths)


def planted(tool):
    """The mistake must be found, and nothing else."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        (root / "zero").mkdir()
        (root / "zero/good.h").write_text("#pragma once\nint good();\n")
        (root / "zero/wide.cu").write_text("int a;\nint  wide( );\nint   more;\n")
        found, count = check(tool, root)
    if count != 2 or len(found) != 1 or not found[0].startswith("zero/wide.cu:2: "):
        sys.exit("planted mistake: expected zero/wide.cu:2:, got\n" + "\n".join(found))


tool = formatter()
if sys.argv[1] == "--planted":
    planted(tool)
    print("the planted mistake is found")
else:
    found, count = check(tool, pathlib.Path(sys.argv[1]))
    print("\n".join(found) or f"{count} files are as clang-format leaves them")
    sys.exit(1 if found else 0)
