#!/usr/bin/env python3
"""Checks that includes respect the layers, that vendor headers stay in backend folders and files and {fmt} in
one file, that public headers include public ones only, that files are short, and that tests know every kernel.

usage: check_layers.py SOURCE_DIR
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
ALLOWED = {
    "runtime": {"runtime"},
    "kernels": {"runtime", "kernels"},
    "autograd": {"runtime", "kernels", "autograd"},
    "zero": {"runtime", "kernels", "autograd", "zero"},
    "models": {"runtime", "kernels", "autograd", "models"},
}
VENDOR = re.compile(
    r"(cuda|cublas|nccl|mpi\.h|omp\.h|Eigen/|immintrin|sanitizer/)")
LEVEL_ZERO = re.compile(r"(level_zero/|ze[st]?_\w+\.h)")
LEVEL_ZERO_FOLDERS = {("runtime", "hpu"), ("kernels", "hpu"), ("tests", "fakes", "level_zero"), ("tests", "hpu")}
# {fmt} has inline functions, so objects for one instruction set must not include it.
FORMAT = "runtime/text/format.h"
# zerograd::text is a library above the engine. Engine files must not include it.
TEXT = "models/tokenizer/"
PUBLIC_HEADERS = "tools/cmake/PublicHeaders.cmake"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.M)
BACKENDS = {"cpu", "cuda", "hpu", "meta"}
# Files elsewhere that may include vendor headers: a kernel's code for one backend, and the one file that calls MPI.
BACKEND_FILE = re.compile(r"kernels/.*(_(cpu|simd|amx|hpu)\.(h|cpp)|\.(cuh?|clh?))|runtime/comm/mpi_wire\.cpp")
LONGEST = 500
# Lines for a terminal go out in one place, which escapes control characters in names from files. Its exceptions are
# help, the progress line, generated text and the tables of benchmarks.
PRINTS = re.compile(r"std::(printf|puts|putchar|cout|cerr)\b|std::(fprintf\(std|f(?:puts|write|putc)\([^;]*\bstd(?:out|err)\))")
PRINTERS = re.compile(r"runtime/command_line/command_line\.cpp|tools/(main|output/console|commands/(generate|chat))\.cpp|"
                      r"tools/(bench|examples)/.*|(bench|tests)/.*")
# Every family of kernels includes these headers; they include no family, or a change of one compiles all.
SHARED = re.compile(r"kernels/\w+\.h")
FAMILY = re.compile(r"zerograd/kernels/(?!cpu/|cuda/|hpu/)\w+/")
# A room is a header with its source (x.h, x.cpp, x.cu). Rooms of these folders must not include each other in turn.
ROOMS = ("runtime", "kernels", "autograd", "zero", "models", "bench", "tools")
# The floors of runtime, from the lowest; a room includes rooms of its own floor and of lower ones.
FLOORS = {
    "base": re.compile(r"(api|error|dtype|shape|random|portable_(math|templates)|checked_product|visit_type|version|machine)|text/.*|"
                       r"storage/(file_io|checksum|file_set|safetensors\w*|tensorboard|npy_format)"),
    "device": re.compile(r"(device\w*|backend|memory\w*|ledger|arena|tensor|tensor_text|copy|pending|dlpack|launches|trace)|"
                         r"(cpu|hpu)/.*|cuda/(?!nccl|device).*|storage/(swap\w*|block_io|uring\w*|tensor_files)"),
    "ranks": re.compile(r"comm/.*|cuda/.*"),
    "plan": re.compile(r"plan\w*|recorder|step_time|peaks"),
    "command_line": re.compile(r"command_line/.*"),
}
# JSON is read in one place, which has limits and refuses zero bytes.
PARSES = re.compile(r"\bjson::(parse|sax_parse)\(")

problems = []
# The public headers of each library, and the headers that include all of them.
lists = dict(re.findall(r"^set\(ZG_(\w+)_HEADERS\s+([^)]*)\)", (root / PUBLIC_HEADERS).read_text(), re.M))
public = [header for names in lists.values() for header in names.split()]
umbrellas = {f"zerograd/{'zerograd' if library == 'ENGINE' else library.lower()}.h" for library in lists}
umbrellas.add("zerograd/bench.h")
if not public:
    problems.append(f"{PUBLIC_HEADERS}: no list of headers found")
for header in public:
    if not (root / header).is_file():
        problems.append(f"{PUBLIC_HEADERS}: lists {header}, which does not exist")
        continue
    for mark, included in re.findall(r'^\s*#\s*include\s*([<"])([^">]+)[">]', (root / header).read_text(), re.M):
        if mark == "<" and re.search(r"[./]", included) and header not in lists.get("CUDA", "").split():
            problems.append(f"{header}: includes <{included}>; a public header includes the C++ library's only")
        if mark == '"' and included.removeprefix("zerograd/") not in public:
            problems.append(f"{header}: includes {included}, which is internal; "
                            f"declare what is needed, or list it in {PUBLIC_HEADERS}")

files = [path for pattern in ("*.h", "*.cpp", "*.cu", "*.cuh", "*.cl", "*.clh", "*.py")
         for folder in (*ALLOWED, "tools", "tests", "bench")
         for path in (root / folder).rglob(pattern)]
for path in files:
    place = path.relative_to(root)
    text = path.read_text()
    lines = text.count("\n")
    if lines > LONGEST:
        problems.append(f"{place}: {lines} lines; expected at most {LONGEST}")
    if PRINTS.search(re.sub(r"//.*", "", text)) and not PRINTERS.fullmatch(place.as_posix()):
        problems.append(f"{place}: prints to a terminal; expected print_line() of zerograd/runtime/text/format.h")
    if PARSES.search(text) and place.parts[0] != "tests":
        problems.append(f"{place}: parses JSON; expected parse_json_object() of zerograd/runtime/text/json.h")
    for included in INCLUDE.findall(text):
        if included.split("/")[0] in ALLOWED and "/" in included:
            problems.append(f"{place}: includes {included}; expected zerograd/{included}")
        folder = included.removeprefix("zerograd/").split("/")[0]
        allowed = ALLOWED.get(place.parts[0])
        if allowed and (root / folder).is_dir() and "/" in included and folder not in allowed:
            problems.append(f"{place}: includes {included}; "
                            f"{place.parts[0]} may include {', '.join(sorted(allowed))}")
        if place.parts[0] == "bench" and folder == "tools":
            problems.append(f"{place}: includes {included}; bench includes nothing of tools, which includes bench")
        if included.startswith("zerograd/" + TEXT) and place.parts[0] in ALLOWED and \
                not str(place).startswith(TEXT):
            problems.append(f"{place}: includes {included}; only {TEXT} may, which is zerograd::text")
        if included.count("/") == 1 and included in umbrellas and place.parts[0] in ALLOWED:
            problems.append(f"{place}: includes {included}, which has every layer; include what is used")
        if SHARED.fullmatch(place.as_posix()) and FAMILY.match(included):
            problems.append(f"{place}: includes {included}; every family includes {place.name}, declare what is needed")
        if VENDOR.match(included) and place.parts[0] in ALLOWED and place.parts[1] not in BACKENDS and \
                not BACKEND_FILE.fullmatch(place.as_posix()):
            problems.append(f"{place}: includes {included} outside a backend's folders and files")
        if included.startswith("fmt/") and place.as_posix() != FORMAT:
            problems.append(f"{place}: includes {included}; expected zerograd/{FORMAT}")
        if included == f"zerograd/{FORMAT}" and re.search(r"_(simd|amx)\.(h|cpp)$|\.cuh?$", place.name):
            problems.append(f"{place}: includes {included}, whose inline functions are compiled for one device")
        if LEVEL_ZERO.match(included) and all(place.parts[:len(folder)] != folder for folder in LEVEL_ZERO_FOLDERS):
            problems.append(f"{place}: includes {included}; Level Zero belongs in " +
                            ", ".join("/".join(folder) for folder in sorted(LEVEL_ZERO_FOLDERS)))

for folder in ROOMS:
    includes = {}  # of a room: the rooms that it includes, and the file that does
    for path in files:
        place = path.relative_to(root)
        for included in INCLUDE.findall(path.read_text()) if place.parts[0] == folder else ():
            other = pathlib.Path(included.removeprefix("zerograd/")).with_suffix("")
            if other.parts[0] == folder and other != place.with_suffix(""):
                includes.setdefault(place.with_suffix(""), {})[other] = place
    reached = {}
    for room in includes:
        reached[room], waiting = set(), [room]
        while waiting:
            new = set(includes.get(waiting.pop(), ())) - reached[room]
            reached[room] |= new
            waiting += new
    for room in sorted(includes):
        circle = [other for other in sorted(reached[room]) if room in reached.get(other, ())]
        if circle[:1] == [room]:
            pairs = [f"{place} -> {other}" for one in circle for other, place in sorted(includes[one].items())
                     if other in circle]
            problems.append(f"{pairs[0].split()[0]}: {len(circle)} rooms include each other in turn; expected none, "
                            f"got {', '.join(pairs)}")

def floor_of(path):
    room = path.relative_to("runtime").with_suffix("").as_posix()
    return next((number for number, rooms in enumerate(FLOORS.values()) if rooms.fullmatch(room)), None)


for path in files:
    place = path.relative_to(root)
    for included in INCLUDE.findall(path.read_text()) if place.parts[0] == "runtime" else ():
        if floor_of(place) is None:
            problems.append(f"{place}: expected a room of {', '.join(FLOORS)}; add it to FLOORS of tests/check_layers.py")
            break
        if included.startswith("zerograd/runtime/") and \
                (floor_of(pathlib.Path(included).relative_to("zerograd")) or 0) > floor_of(place):
            problems.append(f"{place}: includes {included}, of a higher floor; the floors of runtime are "
                            f"{', '.join(FLOORS)}")

# Every kernel that a header declares must be in the list of kernels that tests guard.
listed = (root / "tests/kernels/every_kernel.h").read_text()
for header in (root / "kernels").rglob("*.h"):
    text = header.read_text()
    for args, kernel in re.findall(r"extern ZG_API Kernel<(\w+)> (\w+);", text):
        if not re.search(rf"k::{kernel}\b", listed):
            problems.append(f"{header.relative_to(root)}: {kernel} is not in tests/kernels/every_kernel.h")
        if not re.search(rf"operands\(const {args}&", text):
            problems.append(f"{header.relative_to(root)}: {args} has no operands(), which name its tensors")
if not files:
    problems.append(f"{root}: no sources found")
print("\n".join(problems) or f"{len(files)} files keep to the layers")
sys.exit(1 if problems else 0)
