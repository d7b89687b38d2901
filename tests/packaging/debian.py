#!/usr/bin/env python3
"""Makes the Debian packages, checks their declared dependencies, unpacks them into an empty folder as a root file
system, runs the zerograd command of that folder, and builds and runs a program with the library in it.

usage: debian.py BUILD CONSUMER WORK CMAKE CPACK COMPILER FLAGS VERSION
CONSUMER is the source folder of the program (tests/consumer). WORK is a folder that is emptied and used.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

from checks import Consumer, empty, expect, expect_in, linked, run

build, source, work, cmake, cpack, compiler, flags, version = sys.argv[1:]
for tool in ("dpkg-deb", "dpkg-shlibdeps", "dpkg-query", "apt-cache"):
    if not shutil.which(tool):
        print(f"SKIPPED: Debian packages ({tool} is not installed)")
        sys.exit(0)
work = empty(work)
run(cpack, "-G", "DEB", "--config", pathlib.Path(build) / "CPackConfig.cmake", "-B", work / "packages",
    cwd=build)
packages = {run("dpkg-deb", "--field", file, "Package").strip(): file
            for file in sorted((work / "packages").glob("*.deb"))}
expect(sorted(packages) == ["libzerograd-dev", "zerograd"], f"expected two packages, got {packages}")


def field(package, name):
    return run("dpkg-deb", "--field", packages[package], name).strip()


def dependencies_of(package):
    """The names of the packages that `package` depends on. Each must be known to apt or installed here."""
    names = [re.split(r"[ (|]", entry.strip())[0] for entry in field(package, "Depends").split(",")]
    for name in names:
        known = subprocess.run(["apt-cache", "show", name], capture_output=True).returncode == 0 or \
            subprocess.run(["dpkg-query", "-s", name], capture_output=True).returncode == 0
        expect(known, f"{package} depends on {name}; expected a package that apt knows or that is installed")
    return set(names)


for package in packages:
    expect(field(package, "Version") == version,
           f"{package} has version {field(package, 'Version')}; expected {version}")
    # CPack writes CPACK_PACKAGE_CONTACT, "zerograd maintainers <...>".
    expect_in("maintainers", field(package, "Maintainer"), package)
    expect(len(field(package, "Description").splitlines()) > 1, f"{package} has a short description only")


def owner(file):
    """The package that owns `file`. dpkg may list the file under /lib, a link to /usr/lib; both are tried."""
    for path in (file, file.resolve(), pathlib.Path("/" + str(file.resolve()).removeprefix("/usr/"))):
        found = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    sys.exit(f"{file} belongs to no package")


def library_file(*names, folders=()):
    """The path of the first of `names` that exists in `folders` or in the linker's default folders."""
    for name in names:
        for path in [*(pathlib.Path(folder) / name for folder in folders),
                     pathlib.Path(os.path.normpath(run(compiler, f"-print-file-name={name}").strip()))]:
            if path.is_absolute() and path.exists():
                return path
    sys.exit(f"the linker finds none of {names}")


# zerograd must depend on the packages of all shared libraries that the executable lists (NEEDED). libzerograd-dev
# must depend on the packages of all libraries that a program links (-l in the .pc files).
command_needs, library_needs = dependencies_of("zerograd"), dependencies_of("libzerograd-dev")
root = empty(work / "root")
for file in packages.values():
    run("dpkg-deb", "-x", file, root)
for name in linked(root / "usr/bin/zerograd"):
    package = owner(library_file(name))
    expect(package in command_needs, f"the command needs {name} of package {package}; expected it among "
                                     f"the dependencies of zerograd, {sorted(command_needs)}")
for file in next((root / "usr").glob("lib*/**/pkgconfig")).glob("*.pc"):
    libs = re.search(r"^Libs:.*", file.read_text(), re.M)[0]
    for name in re.findall(r" -l(?!zerograd)(\S+)", libs):
        # The CUDA toolkit may be installed without a Debian package. The package's Description names it.
        if name == "cudart_static":
            expect_in("CUDA Toolkit", field("libzerograd-dev", "Description"), "libzerograd-dev")
            continue
        package = owner(library_file(f"lib{name}.so", f"lib{name}.a", folders=re.findall(r" -L(/\S+)", libs)))
        expect(package in library_needs, f"{file.name} says -l{name}, which is of {package}; "
                                         f"libzerograd-dev depends on {sorted(library_needs)}")

for package in packages:
    expect_in("Apache License", (root / f"usr/share/doc/{package}/copyright").read_text(), package)
doc = root / "usr/share/doc/zerograd"
expect((doc / "tools/examples/trainer.cpp").exists(), "zerograd has no examples")
for page in doc.rglob("*.md"):
    links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]*)?\)", page.read_text())
    dead = [link for link in links if not (page.parent / link).exists()]
    expect(not dead, f"{page}: expected links to installed files, got {dead}")
expect_in("(tools/examples/README.md)", (doc / "README.md").read_text(), "the installed README")
command = root / "usr/bin/zerograd"
expect_in(f"zerograd {version}", run(command, "--version"), "the command")
expect_in("step", run(command, "train", "--data", "sort", "--model-type", "gpt-nano", "--steps", "2"), "train")
expect("\n" not in run("find", root / "usr", "-name", "*_state.h"),
       "the packages contain internal headers (*_state.h); expected none")

consumer = Consumer(cmake, compiler, flags, source, version)
consumer.configure(root / "usr", work / "build")
consumer.build_and_run(work / "build")
print(f"packages are made, unpacked and used; zerograd depends on {', '.join(sorted(command_needs))}; "
      f"libzerograd-dev on {', '.join(sorted(library_needs))}")
