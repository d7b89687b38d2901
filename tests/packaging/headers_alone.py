#!/usr/bin/env python3
"""Compiles each installed header alone, and looks at what they include: the C++ library and each other.

usage: headers_alone.py BUILD WORK CMAKE COMPILER FLAGS COUNT
COUNT is the number of public headers, those that include all the others among them.
"""
import concurrent.futures
import os
import subprocess
import sys

from checks import compile_command, empty, expect, run

build, work, cmake, compiler, flags, count = sys.argv[1:]
prefix = empty(work) / "prefix"
run(cmake, "--install", build, "--prefix", prefix, "--component", "dev")
include = prefix / "include"
headers = sorted(header for header in include.rglob("*.h") if "cuda" not in header.parts)  # nvcc compiles those
expect(len(headers) == int(count), f"expected {count} headers under {include}, got {len(headers)}")


def problem(header):
    name = header.relative_to(include)
    result = subprocess.run([*compile_command(compiler, flags), "-Wall", "-Wextra", "-Werror",
                             "-Wno-missing-field-initializers", "-fsyntax-only", "-x", "c++",
                             "-I", include, "-include", name, "-MD", "-MF", "/dev/stdout", "/dev/null"],
                            capture_output=True, text=True)
    if result.returncode != 0:
        return f"{name} does not compile alone:\n{result.stderr}"
    foreign = [file for file in result.stdout.replace("\\\n", " ").split()[1:]
               if any(word in file for word in ("pcre2", "utf8proc", "mpi.h", "omp.h", "cuda", "Eigen", "nlohmann", "xxhash", "/fmt/"))]
    return f"{name} includes {foreign}" if foreign else None


with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    problems = [found for found in pool.map(problem, headers) if found]
print("\n".join(problems) or f"{len(headers)} headers compile alone")
sys.exit(1 if problems else 0)
