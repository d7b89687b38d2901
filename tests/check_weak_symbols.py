#!/usr/bin/env python3
"""Usage: check_weak_symbols.py NM OBJECT...

Fails when an object defines a weak symbol, and names it. Of several weak copies the linker keeps any
one: a copy from an object compiled for AVX-512 would run on every machine. So the *_simd.cpp
objects may define none; calling an inline function of the standard library is how one gets in.
DW.ref.* is allowed: the compiler's own pointers to an exception handler, without code.
"""
import os
import subprocess
import sys


def weak_symbols(nm, path):
    """Names that nm marks as weak (W, V) or unique (u) and defined, demangled."""
    listing = subprocess.run([nm, "-C", "--defined-only", path], check=True, capture_output=True,
                             text=True).stdout
    rows = (line.split(" ", 2) for line in listing.splitlines())
    return [row[2] for row in rows if len(row) == 3 and row[1] in "WVu"
            and not row[2].startswith("DW.ref.")]


def main():
    nm, objects = sys.argv[1], sys.argv[2:]
    if not objects:
        sys.exit("check_weak_symbols: no objects given")
    found = 0
    for path in objects:
        for name in weak_symbols(nm, path):
            print(f"{os.path.relpath(path)} defines the weak symbol {name}")
            found += 1
    print(f"{found} weak symbols in {len(objects)} objects")
    sys.exit(1 if found else 0)


main()
