#!/usr/bin/env python3
"""Installs a build into a folder, and builds and runs a program that uses the engine and the tokenizers with the
flags that pkg-config prints: first with only one kind of libraries installed (KIND), then with both kinds, where the
linker takes the shared ones.

usage: pkg_config.py BUILD CONSUMER WORK CMAKE COMPILER FLAGS KIND VERSION
CONSUMER is the folder of words.cpp. WORK is a folder that is emptied and used. KIND is static or shared, the kind of
the build's main libraries.
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
object_file = work / "program.o"
for component, kind in ((main_kind, main_kind), ("static" if main_kind == "shared" else "shared", "shared")):
    component = "dev" if component == main_kind else component
    run(cmake, "--install", build, "--prefix", prefix, "--component", component)
    path = next(prefix.glob("lib*/**/pkgconfig"))
    env = {"PKG_CONFIG_PATH": str(path)}
    found = run("pkg-config", "--modversion", "zerograd", env=env).strip()
    expect(found == version, f"pkg-config reports version {found}; expected {version}")
    if not object_file.exists():
        run(*compile_command(compiler, flags), "-c", pathlib.Path(source) / "words.cpp", "-o", object_file,
            *run("pkg-config", "--cflags", "zerograd-text", env=env).split())
    program = work / f"program-{component}"
    run(compiler, *flags.split(), object_file, "-o", program,
        *run("pkg-config", "--libs", "zerograd-text", env=env).split())
    consumer.check_output(program, env={"LD_LIBRARY_PATH": str(path.parent)})
    expect(any(name.startswith("libzerograd") for name in linked(program)) == (kind == "shared"),
           f"component {component}: the program links {linked(program)}; expected zerograd as a {kind} library")
print("programs built with pkg-config's flags run, with one kind of libraries installed and with both")
