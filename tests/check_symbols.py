#!/usr/bin/env python3
"""Usage: check_symbols.py weak|libm NM OBJECT...

Fails when an object has a symbol that is not allowed, and names both.

weak: a weak symbol is defined. Of several weak copies the linker keeps any one: a copy from an
object compiled for AVX-512 would run on every machine. So the *_simd.cpp objects may define none;
calling an inline function of the standard library is how one gets in. DW.ref.* is allowed: the
compiler's own pointers to an exception handler, without code.

libm: an elementary function of the C library is called. Its bits depend on the library and on the
processor; runtime/portable_math.h has such functions with the same bits everywhere. Those that IEEE
754 defines to the last bit (fma, sqrt, fmod, rint ...) are allowed.
"""
import os
import re
import subprocess
import sys

LIBM = re.compile("(a?(sin|cos|tan)h?|sincos|atan2|exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|erf|erfc"
                  "|lgamma|tgamma|cbrt|hypot)[fl]?(@.*)?")


def weak_symbols(nm, path):
    """Names that nm marks as weak (W, V) or unique (u) and defined, demangled."""
    listing = subprocess.run([nm, "-C", "--defined-only", path], check=True, capture_output=True,
                             text=True).stdout
    rows = (line.split(" ", 2) for line in listing.splitlines())
    return [row[2] for row in rows if len(row) == 3 and row[1] in "WVu"
            and not row[2].startswith("DW.ref.")]


def libm_calls(nm, path):
    listing = subprocess.run([nm, "--undefined-only", path], check=True, capture_output=True, text=True).stdout
    names = (line.split()[-1] for line in listing.splitlines())
    return [name for name in names if LIBM.fullmatch(name)]


def main():
    kind, nm = sys.argv[1:3]
    objects = [path for path in sys.argv[3:] if path.endswith(".o")]  # without the precompiled header
    if not objects:
        sys.exit("check_symbols: no objects given")
    find, verb, noun = {"weak": (weak_symbols, "defines the weak symbol", "weak symbols"),
                        "libm": (libm_calls, "calls the C library's", "calls of the C library's functions")}[kind]
    found = 0
    for path in objects:
        for name in find(nm, path):
            print(f"{os.path.relpath(path)} {verb} {name}")
            found += 1
    print(f"{found} {noun} in {len(objects)} objects")
    sys.exit(1 if found else 0)


main()
