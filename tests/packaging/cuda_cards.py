#!/usr/bin/env python3
"""For which cards a build has machine code, by a fake nvidia-smi and a fake nvcc; and configuring with an nvcc
that is too old, one that does not compile, none, and with a card that is too old.

usage: cuda_cards.py SOURCE WORK CMAKE COMPILER
"""
import pathlib
import sys

from checks import BARE, disabled, empty, expect, expect_in, run

source, work, cmake, compiler = sys.argv[1:]
work = empty(work)
fakes = empty(work / "bin")
path = {"PATH": f"{fakes}:{BARE['PATH']}"}
OLD, H100, NEW = "Quadro RTX 4000, 7.5", "NVIDIA H100 80GB HBM3, 9.0", "NVIDIA RTX 5090, 12.0"


def fake(program, *lines, status=0):
    text = "".join(f"echo '{line}'\n" for line in lines)
    (fakes / program).write_text(f"#!/bin/sh\n{text}exit {status}\n")
    (fakes / program).chmod(0o755)


script = work / "cards.cmake"
script.write_text(f"""cmake_minimum_required(VERSION 3.25)
include({source}/tools/cmake/CudaCards.cmake)
zg_old_cuda_cards(old)
zg_cuda_architectures(found FOUND nvcc)
zg_cuda_architectures(all ALL nvcc)
message("old=${{old}} found=${{found}} all=${{all}}")
""")
NVCC_13 = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
for cards, codes, expected in [
        ((), NVCC_13, "old= found=90a-real;80-virtual all=80-real;89-real;90a-real;100-real;120-real;80-virtual"),
        ((H100, H100), NVCC_13, "old= found=90a-real;80-virtual all="),
        ((NEW,), NVCC_13, "old= found=120-real;80-virtual all="),
        ((OLD, NEW, H100), NVCC_13[:5], "old= found=90a-real;80-virtual all=80-real;89-real;90a-real;80-virtual"),
        ((OLD,), NVCC_13, "old=Quadro RTX 4000 (7.5) found=90a-real;80-virtual all="),
        (("No devices were found",), (), "old= found=90a-real;80-virtual all=90a-real;80-virtual")]:
    fake("nvidia-smi", *cards)
    fake("nvcc", *codes)
    expect_in(expected, run(cmake, "-P", script, env=path), f"cards {cards}, codes {codes}")


def configured(*arguments, **options):
    build = empty(work / "build")
    return run(cmake, "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}", "-DZG_HPU=OFF",
               "-DZG_CORE=ON", "-DZG_TESTS=OFF", *disabled(["MPI"]), *arguments, env=path | {"CUDACXX": str(fakes / "nvcc")},
               **options)


fake("nvidia-smi", status=9)
fake("nvcc", "Cuda compilation tools, release 11.8, V11.8.89")
expect_in(f"CUDA: OFF (ZG_CUDA=AUTO), as {fakes}/nvcc is 11.8: C++20 needs 12.0 or newer", configured(), "nvcc 11.8")
expect_in(f"CUDA cannot be ON, as {fakes}/nvcc is 11.8", configured("-DZG_CUDA=ON", succeeds=False), "nvcc 11.8, ON")
for release in ("12.4", "13.0"):
    fake("nvcc", f"Cuda compilation tools, release {release}, V1")
    expect_in(f"CUDA: OFF (ZG_CUDA=AUTO), as there is no nvcc that compiles ({fakes}/nvcc)", configured(), f"nvcc {release}")
fake("nvidia-smi", OLD)
expect_in("CUDA: OFF (ZG_CUDA=AUTO), as the kernels need a card of compute capability 8.0 or newer, and this machine "
          "has Quadro RTX 4000 (7.5)", configured(), "an old card")
(fakes / "nvcc").unlink()
fake("nvidia-smi", status=9)
expect_in("CUDA: OFF (ZG_CUDA=AUTO), as there is no nvcc that compiles", configured(), "no nvcc")
print("each nvcc and card gives a build, or says why it has no CUDA")
