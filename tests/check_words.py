#!/usr/bin/env python3
"""Checks the words of comments, messages and names: no comment begins with Of, What or Whoever, no identifier uses a
word that this project replaced by the field's term, and no line has an idiom that has a plain form.

usage: check_words.py SOURCE_DIR     prints what it finds; `--planted` checks that it finds planted mistakes
"""
import pathlib
import re
import sys
import tempfile

FOLDERS = ("runtime", "kernels", "autograd", "zero", "models", "tools", "bench", "tests")
CPP = {".h", ".cpp", ".cu", ".cuh", ".cl", ".clh"}
HASH = {".py", ".cmake", ".txt", ".sh", ""}
SKIPPED = ("tests/reference/fixtures", "tests/fuzz/corpus", "bench/results")
OPENING = r"\s*(Of|What|Whoever)\b"
# Old word -> the term.
TERMS = {r"\w*Carriers?\w*": "Transport", r"Doing": "Activity", r"\w*Loan\w*|loan": "borrowed gradient buffer",
         r"\w*[Dd]rill\w*": "FaultInjection", r"\w+Place|Place": "a placement, position, range or location",
         r"\w*[Ww]alk(?:s|ed)?(?![a-z])\w*": "dry run, plan or visit", r"later_\w+": "unsupported flags",
         r"early_end|blank_data": "stop conditions, meta dataset"}
# Idiom -> plain form.
IDIOMS = {r"(?<=[^\s/#<*-] )(?<!here )is no (?!longer\b|more\b|less\b)[a-z]\w*": "is not a ...",
          r"[Nn]obody": "the thread, program or reader that does not", r"says? itself": "defines, marks",
          r"is without effect": "has no effect", r"does not do it": "lacks it"}
TOKENS = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|R"\((?:.|\n)*?\)"|//[^\n]*|/\*.*?\*/', re.S)
NAMES = re.compile(r"\b(?:" + "|".join(f"({pattern})" for pattern in TERMS) + r")\b")
# CTest divides a list at semicolons.
TEST_NAME = re.compile(r'TEST_CASE[^"{;]*"((?:[^"\\]|"\s*")*;[^"]*)"')
PHRASES = re.compile("|".join(rf"(\b{pattern}\b)" for pattern in IDIOMS))


def plain_form(match, forms):
    return list(forms.values())[next(i for i, group in enumerate(match.groups()) if group)]


def comments_of(text, cpp):
    """(line, text) of each comment; lines of // that follow one another are one."""
    if cpp:
        last = -2
        for match in TOKENS.finditer(text):
            if not match[0].startswith("/"):
                continue
            line = text.count("\n", 0, match.start()) + 1
            alone = not text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip()
            if not (alone and line == last + 1):
                yield line, match[0].lstrip("/*<!")
            last = line if alone else -2
        return
    last = -2
    for line, words in enumerate(text.split("\n"), 1):
        if words.lstrip().startswith("#") and not words.startswith("#!"):
            if line != last + 1:
                yield line, words.lstrip().lstrip("#")
            last = line


def problems_of(path, text):
    cpp = path.suffix in CPP
    for line, comment in comments_of(text, cpp):
        if found := re.match(OPENING, comment):
            yield f"{path}:{line}: a comment begins with {found[1]}; say subject and verb"
    if cpp and path.parts[0] != "tests":
        code = TOKENS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        for match in NAMES.finditer(code):
            line = code.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: the name {match[0]}; the term is {plain_form(match, TERMS)}"
    for match in TEST_NAME.finditer(text) if cpp else ():
        yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}: the name of a test has a semicolon: {match[1]}"
    for line, words in enumerate(text.split("\n"), 1):
        for match in PHRASES.finditer(words):
            yield f"{path}:{line}: '{match[0]}'; the plain form is: {plain_form(match, IDIOMS)}"


def check(root):
    problems, count = [], 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            place = path.relative_to(root)
            if not path.is_file() or path.is_symlink() or place.as_posix().startswith(SKIPPED) or \
                    path.suffix not in CPP | HASH or path.resolve() == pathlib.Path(__file__).resolve():
                continue
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            if path.suffix == "" and not text.startswith("#!"):
                continue
            count += 1
            problems += problems_of(place, text)
    if not count:
        problems.append(f"{root}: no sources found")
    return problems, count


def planted():
    """Each mistake must be found, and nothing else."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        (root / "zero").mkdir()
        (root / "zero/a.h").write_text("// Of the last one.\nint x;  ///< What it is\nstruct HeadPlace {};\n"
                                       "// The first line\n// Of a sentence goes on.\n"
                                       "const char* s = \"Carrier\";  // a Carrier in a comment may stay\n"
                                       "TEST_CASE(\n    \"one \"\n    \"and; two\") {}\n")
        (root / "zero/b.py").write_text("#!/usr/bin/env python3\n# Whoever reads.\nx = 1  # Of\n"
                                        "y = 'the file is no folder'\n# Now there is no folder, as it\n"
                                        "# is no longer.\n# A key is without effect.\n")
        found, _ = check(root)
    expected = ["zero/a.h:1:", "zero/a.h:2:", "zero/a.h:3:", "zero/a.h:7:", "zero/b.py:2:", "zero/b.py:4:",
                "zero/b.py:7:"]
    if len(found) != len(expected) or not all(line.startswith(want) for line, want in zip(found, expected)):
        sys.exit("planted mistakes: expected " + ", ".join(expected) + "; got\n" + "\n".join(found))


if sys.argv[1] == "--planted":
    planted()
    print("planted mistakes are found")
else:
    found, count = check(pathlib.Path(sys.argv[1]))
    print("\n".join(found) or f"{count} files use the project's words")
    sys.exit(1 if found else 0)
