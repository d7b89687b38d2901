#!/usr/bin/env python3
"""Lets dpkg install the packages that debian.py made into an empty root, and remove them again.

usage: debian_install.py WORK
"""
import os
import pathlib
import sys

from checks import empty, expect, expect_in, run

work = pathlib.Path(sys.argv[1])
if os.geteuid() != 0:
    print("SKIPPED: dpkg --root (only root may; the packages were unpacked by another test)")
    sys.exit(0)
root = empty(work / "installed")
admin = root / "var/lib/dpkg"
for folder in ("info", "updates", "triggers"):
    (admin / folder).mkdir(parents=True)
(admin / "status").touch()
dpkg = ["dpkg", f"--root={root}", "--force-depends", f"--log={work}/dpkg.log"]
run(*dpkg, "--install", *sorted((work / "packages").glob("*.deb")))
for package in ("zerograd", "libzerograd-dev"):
    status = run("dpkg-query", f"--admindir={admin}", "--status", package)
    expect_in("install ok installed", status, package)
run(root / "usr/bin/zerograd", "--version")
run(*dpkg, "--remove", "zerograd", "libzerograd-dev")
left = [path for path in (root / "usr").rglob("*") if path.is_file()]
expect(not left, f"packages that were removed left {left}")
print("dpkg installs the packages and removes them")
