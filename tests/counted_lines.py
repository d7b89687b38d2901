#!/usr/bin/env python3
"""Tests what tools/count-lines takes for code and for a header with one user.

usage: counted_lines.py SOURCE_DIR
"""
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import unittest

root = pathlib.Path(sys.argv.pop(1))
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("count_lines", str(root / "tools/count-lines"))
count_lines = importlib.util.module_from_spec(importlib.util.spec_from_loader("count_lines", loader))
loader.exec_module(count_lines)


class Lines(unittest.TestCase):
    def test_blanks_and_comments_are_no_code(self):
        self.assertEqual(count_lines.code_lines("// a\n\nint b;  // c\n/* d\n e */\n  \nint f; /* g */\n"), 2)

    def test_code_around_a_comment_of_several_lines_counts(self):
        self.assertEqual(count_lines.code_lines("int a; /* b\nc\n*/ int d;\n"), 2)

    def test_comment_markers_inside_a_string_literal_are_code(self):
        self.assertEqual(count_lines.code_lines('f("//", \'"\');\ng("/*");\nh("*/");\n'), 3)
        self.assertEqual(count_lines.code_lines('const char* a = R"x(// b\n/* "c)x";\nint d;\n'), 3)

    def test_a_digit_separator_does_not_begin_a_character_literal(self):
        self.assertEqual(count_lines.code_lines("int a = 1'000;\n// b's\nint c;\n"), 2)


class Sizes(unittest.TestCase):
    FILES = {
        "runtime/arena.h": "int a;\n",
        "runtime/arena.cpp": '#include "zerograd/runtime/arena.h"\n',
        "runtime/tensor.h": '#include "zerograd/runtime/arena.h"\n',
        "runtime/tensor_simd.cpp": '#include "tensor.h"\nint b;\n',
        "zero/engine.cpp": '#include "zerograd/runtime/tensor.h"\n#include "zerograd/runtime/api.h"\n',
        "runtime/api.h": "int c;\n",
        "tests/runtime/arena_test.cpp": '#include "zerograd/runtime/arena.h"\nint d;\n',
        "tools/cmake/PublicHeaders.cmake": "set(ZG_ENGINE_HEADERS\n    runtime/api.h)\n",
    }

    def test_users_of_a_header_are_the_sources_in_layers_that_include_it_except_its_own(self):
        sources = {path: text for path, text in self.FILES.items() if path.split("/")[0] in count_lines.LAYERS}
        self.assertEqual(count_lines.headers_with_one_user(sources, {"runtime/api.h"}),
                         ["runtime/arena.h", "runtime/tensor.h"])

    def test_measure_counts_lines_sources_headers_and_files_per_folder(self):
        rows = count_lines.measure(self.FILES)
        self.assertEqual((rows["runtime: code lines"], rows["zero: code lines"], rows["tests: code lines"]), (6, 2, 2))
        self.assertEqual((rows["sources"], rows["headers with one user"]), (6, 2))
        self.assertEqual(rows["layers: most files in a folder"], "runtime: 5")

    def test_scripts_and_tables_of_layers_are_counted_but_results_and_fixtures_are_not(self):
        self.assertEqual([path for path in ("bench/a.py", "tools/a.json", "kernels/a.inc", "bench/results/a.json",
                                            "tests/a.py", "tests/a.json", "tools/a.md")
                          if count_lines.is_counted(path)], ["bench/a.py", "tools/a.json", "kernels/a.inc"])
        rows = count_lines.measure(self.FILES | {"tools/a.py": "# a\n\nb = 1\nc = 2\n", "tools/a.json": "{}\n"})
        self.assertEqual((rows["scripts and tables: lines"], rows["all layers: code lines"]), (3, 8))

    def test_a_row_above_the_budget_is_named_with_both_numbers(self):
        rows = count_lines.measure(self.FILES)
        self.assertEqual(count_lines.over_budget(rows, "# why\n\nruntime: code lines 6\ntests: code lines 2\n"), [])
        problems = count_lines.over_budget(rows, "runtime: code lines 5\ntests: code lines 2\n")
        self.assertEqual(len(problems), 1, problems)
        self.assertIn("runtime: code lines: expected at most 5, got 6", problems[0])

    def test_the_sources_are_within_their_budget(self):
        budget = (root / "tools/budget.txt").read_text()
        self.assertEqual(count_lines.over_budget(count_lines.measure(count_lines.files_of()), budget), [])


class Programs(unittest.TestCase):
    def test_the_table_of_the_same_programs_has_their_lines_and_none_here_passes_1_3_times_pytorch(self):
        folder = root / "bench/lines"
        rows = [line for line in (folder / "README.md").read_text().splitlines() if line.endswith("x |")]
        self.assertEqual(len(rows), 3)
        for row in rows:
            shown = re.findall(r"\[(\d+)\]\(([^)]+)\)", row)
            lines = [sum(not re.match(r"\s*($|//|#[^i])", line) for line in (folder / file).read_text().splitlines())
                     for _, file in shown]
            self.assertEqual([int(count) for count, _ in shown], lines, row)
            self.assertIn(f"{lines[2] / lines[0]:.2f}x", row)
            self.assertLessEqual(lines[2] / lines[0], 1.3, row)


if __name__ == "__main__":
    unittest.main()
