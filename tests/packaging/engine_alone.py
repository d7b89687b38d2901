#!/usr/bin/env python3
"""Configures the engine without PCRE2, utf8proc, yaml-cpp, CLI11 and doctest, with forwarding headers in place of
links; the core alone with its tests; and looks into the built libraries: only zerograd::text calls PCRE2 and utf8proc.

usage: engine_alone.py SOURCE WORK CMAKE COMPILER NM ENGINE_LIBRARY TEXT_LIBRARY
"""
import pathlib
import re
import sys

from checks import compile_command, disabled, empty, expect, expect_in, run

source, work, cmake, compiler, nm, engine, text = sys.argv[1:]
source, build = pathlib.Path(source), empty(work)
configure = [cmake, "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
             "-DZG_CUDA=OFF", "-DZG_HPU=OFF", "-DZG_FORWARD_HEADERS=ON",
             *disabled(["PCRE2", "utf8proc", "yaml-cpp", "CLI11"])]
output = run(*configure, *disabled(["doctest", "Python3"]), "-DZG_TOOLS=OFF", "-DZG_TESTS=OFF")
expect_in("Text: OFF", output, "configure")
targets = run(cmake, "--build", build, "--target", "help")
expect_in("zerograd_static", targets, "targets")
expect("zerograd_text" not in targets and "zg_models_text" not in targets, f"text is built:\n{targets}")

# Forwarding headers: files, no links, by which a program compiles; and no header of what is not built.
include = build / "include"
links = [path for path in include.rglob("*") if path.is_symlink()]
expect(not links, f"ZG_FORWARD_HEADERS=ON made links: {links}")
expect(not (include / "zerograd/text.h").exists(), "zerograd/text.h is there without its library")
for header in source.glob("kernels/**/*.h"):
    expect((include / "zerograd" / header.relative_to(source)).is_file(), f"nothing forwards to {header}")
run(*compile_command(compiler, "-fsyntax-only"), "-I", include, source / "tests/consumer/train.cpp")
run(*compile_command(compiler, "-fsyntax-only"), "-I", include, "-include", "zerograd/zerograd.h", "-x", "c++",
    "/dev/null")

# A build that needs PCRE2 says so, and how to go on.
expect_in("PCRE2 was not found (Debian: libpcre2-dev)",
          run(*configure, "-DZG_TEXT=ON", succeeds=False), "ZG_TEXT=ON")
expect_in("set ZG_TOOLS=OFF and ZG_TESTS=OFF",
          run(*configure, "-DZG_TEXT=AUTO", "-DZG_TOOLS=ON", succeeds=False), "ZG_TOOLS=ON")

# The core and its tests need no more packages than doctest and Python.
core = empty(f"{work}-core")
configure[configure.index(build)] = core
run(*configure, "-DZG_CORE=ON")
targets = run(cmake, "--build", core, "--target", "help")
for target in ("test_runtime", "test_kernels", "test_autograd", "test_zero", "zerograd_static"):
    expect_in(f"{target}:", targets, "targets of the core")
expect(not re.search("zg_models|test_models|test_tools|zerograd_command|zerograd_text", targets),
       f"the core has more than itself:\n{targets}")
umbrella = (core / "include/zerograd/zerograd.h").read_text()
expect("zero/engine.h" in umbrella and "models/" not in umbrella, f"zerograd.h of the core:\n{umbrella}")


def undefined(library):
    return {line.split()[-1] for line in run(nm, "-u", library).splitlines() if " U " in f" {line} "}


for prefix in ("pcre2_", "utf8proc_"):
    expect(any(name.startswith(prefix) for name in undefined(text)),
           f"{text} calls no {prefix}*: what this test looks for has another name")
called = sorted(name for name in undefined(engine) if re.match(r"pcre2_|utf8proc_|_ZN?K?4YAML|_ZN?K?3CLI", name))
expect(not called, f"{engine} calls {called}; only zerograd::text may")
print("the engine is configured alone, and calls nothing of PCRE2 and utf8proc")
