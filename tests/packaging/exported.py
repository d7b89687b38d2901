#!/usr/bin/env python3
"""Checks that ZG_API marks every function, class and variable that public headers declare: without it a
program links with the static libraries and not with the shared ones. Looks for symbols of the objects
that are hidden and have the name and the namespace of such a declaration.

usage: exported.py SOURCE LIBRARIES... --headers HEADERS...
"""
import pathlib
import re
import sys

from checks import expect, run

split = sys.argv.index("--headers")
source, libraries, headers = pathlib.Path(sys.argv[1]), sys.argv[2:split], sys.argv[split + 1:]
texts = {name: re.sub(r"//[^\n]*", "", (source / name).read_text()) for name in headers}

SYMBOL = re.compile(r"\s*\d+: \w+\s+\w+ (?:FUNC|OBJECT)\s+GLOBAL (\w+)\s+(?:\[.*\] +)?\d+ (.*)")
NAME = re.compile(r"(?:vtable for |typeinfo for )?((?:zg)(?:::\w+)*::~?\w+)(?:\[abi:\w+\])?(?=\(|$)")
hidden, exported = set(), set()
for line in run("readelf", "-sW", "--demangle", *libraries).splitlines():
    symbol = SYMBOL.match(line)
    name = symbol and NAME.match(symbol[2])
    if name:
        (hidden if symbol[1] == "HIDDEN" else exported).add((name[1], symbol[2]))
expect(hidden and exported, "no symbols were found in " + " ".join(libraries))


def declares(text, name):
    """Whether a header declares a name of its namespace: a function at the begin of a line, a member of a
    class that it defines, a class, or a variable."""
    *scopes, last = name.split("::")
    in_class = scopes[-1][0].isupper()
    namespace = "::".join(scopes[:-1] if in_class else scopes)
    if f"namespace {namespace} {{" not in text and \
            not (namespace.startswith("zg::") and f"namespace {namespace[4:]} {{" in text):
        return False
    definition = r"^(?:class|struct) (?:ZG_API )?%s\b[^;{]*{(.*?)^};"
    if in_class:
        body = re.search(definition % scopes[-1], text, re.M | re.S)
        return bool(body and re.search(r"(?<![\w.>:])%s\(" % re.escape(last), body[1]))
    return bool(re.search(definition % last, text, re.M | re.S) or
                re.search(r"^[A-Za-z][^(){};]*(?<![\w.>:])%s(?:\(|;)" % re.escape(last), text, re.M))


problems = sorted({f"{header}: {symbol} is not exported; mark its declaration with ZG_API"
                   for name, symbol in hidden for header, text in texts.items() if declares(text, name)})
found = sum(any(declares(text, name) for text in texts.values()) for name in {name for name, _ in exported})
expect(found > 300, f"only {found} exported names are in the headers: the search does not find them any more")
print("\n".join(problems) or f"{found} names are declared by {len(headers)} headers and exported")
sys.exit(1 if problems else 0)
