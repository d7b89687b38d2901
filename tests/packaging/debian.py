#!/usr/bin/env python3
"""Makes the Debian packages, looks at what they say they need, unpacks them into an empty root, runs the
command from there, and builds and runs a program with the library of that root.

usage: debian.py BUILD CONSUMER WORK CMAKE CPACK COMPILER FLAGS VERSION
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


def needed(package):
    """Names of what it depends on; each must be a package of this Debian, or be installed here."""
    names = [re.split(r"[ (|]", entry.strip())[0] for entry in field(package, "Depends").split(",")]
    for name in names:
        known = subprocess.run(["apt-cache", "show", name], capture_output=True).returncode == 0 or \
            subprocess.run(["dpkg-query", "-s", name], capture_output=True).returncode == 0
        expect(known, f"{package} depends on {name}, which is no package of this Debian")
    return set(names)


for package in packages:
    expect(field(package, "Version") == version, f"{package} is of version {field(package, 'Version')}")
    expect_in("maintainers", field(package, "Maintainer"), package)
    expect(len(field(package, "Description").splitlines()) > 1, f"{package} has a short description only")


def owner(file):
    """The package that a file belongs to, which may know it under /lib, a link to /usr/lib."""
    for path in (file, file.resolve(), pathlib.Path("/" + str(file.resolve()).removeprefix("/usr/"))):
        found = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    sys.exit(f"{file} belongs to no package")


def library_file(*names, folders=()):
    """Where the linker finds the first of these names: in these folders, or in its own."""
    for name in names:
        for path in [*(pathlib.Path(folder) / name for folder in folders),
                     pathlib.Path(os.path.normpath(run(compiler, f"-print-file-name={name}").strip()))]:
            if path.is_absolute() and path.exists():
                return path
    sys.exit(f"the linker finds none of {names}")


# The command needs the packages of the libraries that it names; the library those that a link needs.
command_needs, library_needs = needed("zerograd"), needed("libzerograd-dev")
root = empty(work / "root")
for file in packages.values():
    run("dpkg-deb", "-x", file, root)
for name in linked(root / "usr/bin/zerograd"):
    package = owner(library_file(name))
    expect(package in command_needs, f"the command needs {name} of {package}, but its package depends on "
                                     f"{sorted(command_needs)}")
for file in next((root / "usr").glob("lib*/**/pkgconfig")).glob("*.pc"):
    libs = re.search(r"^Libs:.*", file.read_text(), re.M)[0]
    for name in re.findall(r" -l(?!zerograd)(\S+)", libs):
        if name == "cudart_static":  # NVIDIA's toolkit need not come from packages; the description says so
            expect_in("CUDA Toolkit", field("libzerograd-dev", "Description"), "libzerograd-dev")
            continue
        package = owner(library_file(f"lib{name}.so", f"lib{name}.a", folders=re.findall(r" -L(/\S+)", libs)))
        expect(package in library_needs, f"{file.name} says -l{name}, which is of {package}; "
                                         f"libzerograd-dev depends on {sorted(library_needs)}")

for package in packages:
    expect_in("Apache License", (root / f"usr/share/doc/{package}/copyright").read_text(), package)
command = root / "usr/bin/zerograd"
expect_in(f"zerograd {version}", run(command, "--version"), "the command")
expect_in("step", run(command, "train", "--data", "sort", "--model-type", "gpt-nano", "--steps", "2"), "train")
expect("\n" not in run("find", root / "usr", "-name", "*_state.h"), "internal headers are packed")

consumer = Consumer(cmake, compiler, flags, source, version)
consumer.configure(root / "usr", work / "build")
consumer.build_and_run(work / "build")
print(f"packages are made, unpacked and used; zerograd depends on {', '.join(sorted(command_needs))}; "
      f"libzerograd-dev on {', '.join(sorted(library_needs))}")
