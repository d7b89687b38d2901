"""Shared by the tests of installed packages: runs commands and checks their output."""
import pathlib
import shutil
import subprocess
import sys

# As little of the machine that built the library as can be: no paths to headers, libraries or packages.
BARE = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8",
        "OMP_WAIT_POLICY": "passive"}
# CMake packages that a program must be built without: only zerograd's own build needs them.
OF_THE_BUILD = ["doctest", "Eigen3", "nlohmann_json", "yaml-cpp", "CLI11", "Python3", "PCRE2", "utf8proc", "liburing",
                "fmt"]


def run(*command, succeeds=True, env=None, cwd=None):
    """stdout and stderr together; ends the test where the status is not as expected."""
    command = [str(word) for word in command]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env=BARE | (env or {}), cwd=cwd)
    if (result.returncode == 0) != succeeds:
        sys.exit(f"{' '.join(command)}\nexpected {'status 0' if succeeds else 'a failure'}, "
                 f"got status {result.returncode}:\n{result.stdout}")
    return result.stdout


def expect(condition, message):
    if not condition:
        sys.exit(message)


def expect_in(words, text, what):
    """Line breaks count as spaces: CMake breaks the lines of its messages."""
    expect(words in " ".join(text.split()), f"{what}: expected '{words}' in:\n{text}")


def empty(folder):
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def disabled(packages):
    return [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in packages]


class Consumer:
    """Configures, builds and runs tests/consumer/words.cpp against an installation."""

    def __init__(self, cmake, compiler, flags, source, version):
        self.cmake, self.compiler, self.flags, self.source = cmake, compiler, flags, source
        self.version = version

    def configure(self, prefix, build, *arguments, succeeds=True):
        return run(self.cmake, "-S", self.source, "-B", build, "-DONLY=words", "-DCMAKE_BUILD_TYPE=Debug",
                   f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={self.compiler}",
                   f"-DCMAKE_CXX_FLAGS={self.flags}", *disabled(OF_THE_BUILD), *arguments,
                   succeeds=succeeds)

    def build_and_run(self, build):
        run(self.cmake, "--build", build)
        self.check_output(build / "words")

    def check_output(self, program, env=None):
        expect_in(f"zerograd {self.version}: ", run(program, env=env), program)


def linked(program):
    """The shared libraries that a program or a library names itself."""
    return [line.split("[")[1].rstrip("]") for line in run("readelf", "-d", program).splitlines()
            if "(NEEDED)" in line]


def compile_command(compiler, flags):
    return [compiler, "-std=c++20", *flags.split()]
