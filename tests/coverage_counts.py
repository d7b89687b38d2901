#!/usr/bin/env python3
"""Compiles a small tree with --coverage, runs it, and compares tools/coverage's table with what ran.

usage: coverage_counts.py SOURCE_DIR CXX
"""
import os
import pathlib
import subprocess
import sys
import tempfile

tool, compiler = pathlib.Path(sys.argv[1]).resolve() / "tools/coverage", sys.argv[2]
TREE = {
    # Lines with code: 2, 4, 5 and 6. The one in the middle does not run.
    "runtime/half.h": "#pragma once\ninline int half(int x) {\n"
                      "  // odd\n  if (x % 2 != 0)\n    return -1;\n  return x / 2;\n}\n",
    "zero/main.cpp": '#include "runtime/half.h"\nint main() { return half(4) - 2; }\n',
    "zero/unused.cpp": "int unused() {\n  return 1;\n}\n",
    "tests/not_counted.cpp": "int not_counted() { return 1; }\n",
}
EXPECTED = ["| runtime | 1 | 4 | 3 | 75.0 % |", "| zero | 2 | 3 | 1 | 33.3 % |", "| all | 3 | 7 | 4 | 57.1 % |",
            "| zero/unused.cpp | 2 | 0.0 % |", "| runtime/half.h | 1 | 75.0 % |"]


def run(*words, cwd, status=0):
    result = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True)
    if result.returncode != status:
        sys.exit(f"{' '.join(map(str, words))}: expected status {status}, got {result.returncode}\n"
                 f"{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


if "clang" in run(compiler, "--version", cwd="/"):
    print(f"SKIPPED: coverage ({compiler} is not g++)")
    sys.exit(0)
with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder, "tree")
    build = root / "build/coverage"
    for name, text in TREE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # As in a real build: headers are found through a link below the build folder.
    (build / "include").mkdir(parents=True)
    (build / "include/runtime").symlink_to(root / "runtime")
    objects = []
    for source in sorted(name for name in TREE if name.endswith(".cpp")):
        objects.append(f"{source.replace('/', '_')}.o")
        run(compiler, "--coverage", "-O0", "-Iinclude", "-c", root / source, "-o", objects[-1], cwd=build)
    said = run(sys.executable, tool, build, "--root", root, cwd="/", status=1)
    problems = [] if "has no .gcda files" in said else [f"before a run: {said}"]
    run(compiler, "--coverage", objects[1], "-o", "program", cwd=build)  # zero_main.cpp.o
    run(build / "program", cwd="/")
    said = run(sys.executable, tool, build, "--root", root, cwd="/")
    problems += [f"expected '{row}' in\n{said}" for row in EXPECTED if row not in said.splitlines()]
    if "not_counted" in said:
        problems.append(f"a test is counted:\n{said}")
    said = run(sys.executable, tool, build, "--root", os.path.join(folder, "tree/zero"), cwd="/", status=1)
    if "was compiled in" not in said:
        problems.append(f"another root: {said}")
print("\n".join(problems) or f"{len(EXPECTED)} rows are as expected")
sys.exit(1 if problems else 0)
