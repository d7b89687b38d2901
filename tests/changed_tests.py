#!/usr/bin/env python3
"""Tests what tools/select-tests chooses, and that each line of fast.txt names a test.

usage: changed_tests.py SOURCE_DIR
"""
import importlib.machinery
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

root = pathlib.Path(sys.argv.pop(1))
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("select_tests", str(root / "tools/select-tests"))
select_tests = importlib.util.module_from_spec(importlib.util.spec_from_loader("select_tests", loader))
loader.exec_module(select_tests)


class Folders(unittest.TestCase):
    def folders(self, *paths):
        return select_tests.folders_of(paths, root)

    def test_a_source_and_its_test_select_the_folder(self):
        self.assertEqual(self.folders("zero/engine.cpp"), ({"zero"}, []))
        self.assertEqual(self.folders("zero/states/reducer.cpp", "tests/kernels/norm/layer_norm_test.cpp"),
                         ({"zero", "kernels"}, []))

    def test_a_name_that_only_begins_like_a_folder_selects_nothing(self):
        self.assertEqual(self.folders("zerograd/x.cpp", "runtime"), (set(), ["zerograd/x.cpp", "runtime"]))

    def test_documents_select_nothing_and_build_files_are_reported(self):
        self.assertEqual(self.folders("zero/README.md", "tests/fast.txt"), (set(), []))
        for name in ("CMakeLists.txt", "tools/cmake/PublicHeaders.cmake", "tests/packaging/debian.py"):
            self.assertEqual(self.folders(name), (set(), [name]))

    def test_code_of_accelerators_needs_a_full_run_too(self):
        for name in ("kernels/cuda/adam.cu", "kernels/norm/layer_norm_hpu.cpp"):
            self.assertEqual(self.folders(name), ({"kernels"}, [name]))


class Selection(unittest.TestCase):
    TESTS = ["runtime:tensors", "runtime:a slow one", "zero: shards [a]", "zero: engine", "fuzz: half a minute"]

    def select(self, folders, patterns, seconds=None, wanted=frozenset()):
        return select_tests.select(self.TESTS, folders, patterns, seconds, wanted)

    def test_all_tests_of_a_folder_and_the_fast_ones_run(self):
        self.assertEqual(self.select({"runtime"}, ["zero: engine"]), ([1, 2, 4], [], []))

    def test_without_a_change_only_fast_ones_run(self):
        self.assertEqual(self.select(set(), ["zero: engine"]), ([4], [], []))

    def test_a_slow_test_is_left_out_unless_it_is_fast_listed_or_changed(self):
        seconds = {"runtime:a slow one": 3.5, "runtime:tensors": 2.5}
        name = "runtime:a slow one"
        self.assertEqual(self.select({"runtime"}, [], seconds), ([1], [name], []))
        self.assertEqual(self.select({"runtime"}, [], seconds, {name}), ([1, 2], [], []))
        self.assertEqual(self.select({"runtime"}, ["runtime: a slow one"], seconds), ([1, 2], [], []))

    def test_a_star_is_any_text_and_other_signs_are_themselves(self):
        self.assertEqual(self.select(set(), ["zero: shards [a]"]), ([3], [], []))
        self.assertEqual(self.select(set(), ["runtime: a * one"]), ([2], [], []))

    def test_a_line_that_names_no_test_is_reported(self):
        self.assertEqual(self.select(set(), ["zero: gone"]), ([], [], ["zero: gone"]))

    def test_tests_of_the_long_list_are_left_out(self):
        tests = ["zero:a", "zero:b", "hpu: why it is absent", "fuzz: half a minute", "fuzz: planted"]
        self.assertEqual(select_tests.split_by_length(tests, ["zero: b", "fuzz: half *", "hpu: products", "zero: gone"]),
                         ([1, 3, 5], [2, 4], ["zero: gone"]))

    def test_targets_are_those_of_folders_and_fast_tests(self):
        targets = select_tests.targets_of({"zero"}, ["runtime: tensors", "layers: includes keep to the layers"])
        self.assertEqual(targets, ["test_runtime", "test_zero"])


@unittest.skipUnless(shutil.which("git"), "there is no git")
class Changes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.git("init", "-q", "-b", "main")
        self.write("zero/engine.cpp", "int a;\n")
        self.write("tests/shared.h", "int b;\n")
        self.write("tests/models/gpt_test.cpp", '#include "../shared.h"\nTEST_CASE("a \\"word\\"") {}\n'
                   'TEST_CASE(\n    "a long "\n    "title" * doctest::test_suite("x")) {}\n')
        self.commit()
        self.git("checkout", "-q", "-b", "work")

    def git(self, *words):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t.invalid", *words],
                       cwd=self.root, check=True, capture_output=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "Change")

    def test_committed_uncommitted_new_and_deleted_files_are_changes(self):
        self.write("runtime/new.cpp", "int c;\n")
        self.commit()
        self.write("kernels/untracked.cpp", "int d;\n")
        (self.root / "zero/engine.cpp").unlink()
        changes = ["kernels/untracked.cpp", "runtime/new.cpp", "zero/engine.cpp"]
        self.assertEqual(select_tests.changed_files(root=self.root), changes)
        self.assertEqual(select_tests.changed_files("HEAD", self.root), [changes[0], changes[2]])

    def test_what_main_got_meanwhile_is_no_change(self):
        self.git("checkout", "-q", "main")
        self.write("bench/other.cpp", "int e;\n")
        self.commit()
        self.git("checkout", "-q", "work")
        self.assertEqual(select_tests.changed_files(root=self.root), [])

    def test_a_header_that_tests_share_selects_its_users(self):
        self.assertEqual(select_tests.folders_of(["tests/shared.h"], self.root), ({"models"}, []))

    def test_cases_of_a_changed_test_are_known_by_name(self):
        self.assertEqual(select_tests.changed_cases(["tests/models/gpt_test.cpp"], self.root),
                         {'models:a \\"word\\"', "models:a long title"})


class FastList(unittest.TestCase):
    def test_each_line_names_a_test(self):
        names = set(re.findall(r'add_test\(NAME "([^"]*)"', (root / "tests/CMakeLists.txt").read_text()))
        for folder in select_tests.FOLDERS:
            for source in (root / "tests" / folder).rglob("*.cpp"):
                names |= {f"{folder}: {case}" for case in select_tests.titles_of(source)}
        patterns = select_tests.read_patterns((root / "tests/fast.txt").read_text())
        for pattern in patterns:
            self.assertTrue(any(select_tests.matches(pattern, name) for name in names),
                            f"tests/fast.txt: no test is named '{pattern}'")
        self.assertLessEqual(len(patterns), 60)


if __name__ == "__main__":
    unittest.main()
