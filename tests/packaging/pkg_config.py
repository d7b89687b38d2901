#!/usr/bin/env python3
"""Installs a build into a folder, and builds and runs a program of the engine and the tokenizers by what
pkg-config says: with the kind of libraries that is installed alone, then with both kinds there.

usage: pkg_config.py BUILD CONSUMER WORK CMAKE COMPILER FLAGS KIND VERSION
"""
import pathlib
import shutil
import sys

from checks import Consumer, compile_command, empty, expect, linked, run

build, source, work, cmake, compiler, flags, main_kind, version = sys.argv[1:]
if not shutil.which("pkg-config"):
    print("SKIPPED: pkg-config (it is not installed; Debian: pkg-config)")
    sys.exit(0)
work = empty(work)
prefix = work / "prefix"
consumer = Consumer(cmake, compiler, flags, source, version)
object_file = work / "words.o"
for component, kind in ((main_kind, main_kind), ("static" if main_kind == "shared" else "shared", "shared")):
    component = "dev" if component == main_kind else component
    run(cmake, "--install", build, "--prefix", prefix, "--component", component)
    path = next(prefix.glob("lib*/**/pkgconfig"))
    env = {"PKG_CONFIG_PATH": str(path)}
    expect(run("pkg-config", "--modversion", "zerograd", env=env).strip() == version, "another version")
    if not object_file.exists():
        run(*compile_command(compiler, flags), "-c", pathlib.Path(source) / "words.cpp", "-o", object_file,
            *run("pkg-config", "--cflags", "zerograd-text", env=env).split())
    program = work / f"words-{component}"
    run(compiler, *flags.split(), object_file, "-o", program,
        *run("pkg-config", "--libs", "zerograd-text", env=env).split())
    consumer.check_output(program, env={"LD_LIBRARY_PATH": str(path.parent)})
    expect(any(name.startswith("libzerograd") for name in linked(program)) == (kind == "shared"),
           f"component {component}, {kind} libraries: the program needs {linked(program)}")
print("pkg-config's words build programs of both kinds")
