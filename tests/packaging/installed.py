#!/usr/bin/env python3
"""Installs a build into a folder, and builds and runs a program of the engine and the tokenizers against
it with CMake, with the static and with the shared libraries.

usage: installed.py BUILD CONSUMER WORK CMAKE COMPILER FLAGS KIND VERSION
"""
import pathlib
import sys

from checks import Consumer, disabled, empty, expect, expect_in, linked, run

build, source, work, cmake, compiler, flags, main_kind, version = sys.argv[1:]
work = empty(work)
prefix = work / "prefix"
other_kind = "shared" if main_kind == "static" else "static"
consumer = Consumer(cmake, compiler, flags, source, version)

run(cmake, "--install", build, "--prefix", prefix, "--component", "dev")
libraries = next(prefix.glob("lib*/**/pkgconfig")).parent
expect(not list(libraries.glob("libzerograd*.a" if main_kind == "shared" else "libzerograd*.so*")),
       f"component dev has the {other_kind} libraries too")

# One kind installed: it needs no word, and the other one is refused by name.
text = consumer.configure(prefix, work / "refused", f"-DKIND={other_kind}", succeeds=False)
expect_in(f"its {other_kind} library, which is not installed", text, "CMake")

# Both kinds installed: BUILD_SHARED_LIBS or a component chooses.
run(cmake, "--install", build, "--prefix", prefix, "--component", other_kind)

# A program of the shared libraries is built without anything else being found, and finds them itself.
names = linked(libraries / "libzerograd.so")
expect(not [name for name in names if "pcre2" in name], f"the engine's library needs PCRE2: {names}")
consumer.configure(prefix, work / "shared", "-DBUILD_SHARED_LIBS=ON",
                   *disabled(["OpenMP", "Threads", "MPI", "CUDAToolkit"]))
consumer.build_and_run(work / "shared")
names = linked(work / "shared/words")
soname = ".".join(version.split(".")[:2])
for library in ("libzerograd.so", "libzerograd-text.so"):
    expect(f"{library}.{soname}" in names, f"expected {library}.{soname} among {names}")

consumer.configure(prefix, work / "static", "-DKIND=static")
consumer.build_and_run(work / "static")
names = linked(work / "static/words")
expect(not [name for name in names if "zerograd" in name], f"static libraries, but {names}")

# Everything that static libraries need and that is missing is named at once.
folder = pathlib.Path(run(compiler, "-print-file-name=libpcre2-8.so").strip()).resolve().parent
text = consumer.configure(prefix, work / "needs", "-DKIND=static", *disabled(["OpenMP"]),
                          f"-DCMAKE_IGNORE_PATH={folder};/usr{folder};{str(folder).removeprefix('/usr')}",
                          succeeds=False)
for words in ("OpenMP (Debian: ", "libpcre2-8 (Debian: libpcre2-dev)", "libutf8proc (Debian: libutf8proc-dev)",
              "libfmt (Debian: libfmt-dev)", "COMPONENTS shared"):
    expect_in(words, text, "CMake")
text = consumer.configure(prefix, work / "unknown", "-DKIND=plastic", succeeds=False)
expect_in("a component plastic, which no version has", text, "CMake")
print("programs of both kinds are built and run")
