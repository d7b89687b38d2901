#!/usr/bin/env python3
"""Plants one violation per rule of check_layers.py in a small tree, and requires that the check names it.

usage: planted_layers.py CHECK_LAYERS
"""
import pathlib
import subprocess
import sys
import tempfile

CHECK = sys.argv[1]
TREE = {
    "tools/cmake/PublicHeaders.cmake":
        "set(ZG_ENGINE_HEADERS\n    runtime/tensor.h\n    zero/engine.h)\n\n"
        "set(ZG_TEXT_HEADERS\n    models/tokenizer/tokenizer.h)\n",
    "runtime/tensor.h": "#pragma once\n#include <vector>\n",
    "runtime/arena.h": "#pragma once\n",
    "kernels/scale/scale.cu": "#include <cuda_runtime.h>\n",
    "kernels/scale/rows.cpp": '#include "zerograd/kernels/scale/lanes.h"\n',
    "kernels/scale/scale.h": "extern ZG_API Kernel<Scale> scale;\noperands(const Scale& a);\n",
    "autograd/tape.h": '#include "zerograd/runtime/tensor.h"\n',
    "zero/engine.h": '#pragma once\n#include "zerograd/runtime/tensor.h"\n',
    "models/gpt/gpt.h": '#include "zerograd/autograd/tape.h"\n',
    "models/tokenizer/tokenizer.h": '#include "zerograd/runtime/tensor.h"\n',
    "tools/examples/gpt.cpp": '#include "zerograd/zero/engine.h"\n#include "zerograd/zerograd.h"\n',
    "runtime/cuda/api.h": "#include <cuda_runtime.h>\n",
    "tests/kernels/every_kernel.h": "k::scale\n",
}
# File, what it holds, what the report says of it.
PLANTED = [
    ("runtime/memory.h", '#include "runtime/tensor.h"\n', "expected zerograd/runtime/tensor.h"),
    ("tests/old_test.cpp", '#include "models/gpt/gpt.h"\n', "expected zerograd/models/gpt/gpt.h"),
    ("kernels/up.cpp", '#include "zerograd/autograd/tape.h"\n', "kernels may include kernels, runtime"),
    ("runtime/device.h", '#include "zerograd/zero/engine.h"\n', "runtime may include runtime"),
    ("models/trains.cpp", '#include "zerograd/zero/engine.h"\n', "models may include"),
    ("zero/models.h", '#include "zerograd/models/gpt/gpt.h"\n', "zero may include"),
    ("models/words.h", '#include "zerograd/models/tokenizer/tokenizer.h"\n', "which is zerograd::text"),
    ("zero/all.cpp", '#include "zerograd/zerograd.h"\n', "include what is used"),
    ("models/tokenizer/all.cpp", '#include "zerograd/text.h"\n', "include what is used"),
    ("kernels/all.cpp", '#include "zerograd/bench.h"\n', "include what is used"),
    ("bench/glue.cpp", '#include "tools/run/run.h"\n', "bench includes nothing of tools"),
    ("kernels/slots.h", '#include "zerograd/kernels/scale/scale.h"\n', "declare what is needed"),
    ("runtime/tensor.cpp", '#include "zerograd/runtime/comm/communicator.h"\n', "of a higher floor"),
    ("runtime/shadow.cpp", '#include "zerograd/runtime/tensor.h"\n', "expected a room of base, device, ranks, plan"),
    ("kernels/scale/lanes.h", '#include "zerograd/kernels/scale/rows.h"\n',
     "got kernels/scale/lanes.h -> kernels/scale/rows, kernels/scale/rows.cpp -> kernels/scale/lanes"),
    ("autograd/vendor.cpp", "#include <cuda_runtime.h>\n", "outside a backend's folders and files"),
    ("kernels/scale/scale.cpp", "#include <cuda_runtime.h>\n", "outside a backend's folders and files"),
    ("zero/level_zero.cpp", "#include <level_zero/ze_api.h>\n", "Level Zero belongs in"),
    ("runtime/tensor.h", '#include "zerograd/runtime/arena.h"\n', "arena.h, which is internal"),
    ("zero/engine.h", '#include "arena.h"\n', "arena.h, which is internal"),
    ("models/tokenizer/tokenizer.h", "#include <nlohmann/json.hpp>\n", "the C++ library's only"),
    ("zero/says.cpp", 'std::fputs(name.c_str(), stderr);\n', "expected print_line()"),
    ("models/reads.cpp", "return json::parse(text);\n", "expected parse_json_object()"),
    ("tools/long.cpp", "int x;\n" * 501, "501 lines; expected at most 500"),
    ("kernels/scale/new.h", "extern ZG_API Kernel<New> fresh;\noperands(const New& a);\n",
     "fresh is not in tests/kernels/every_kernel.h"),
    ("kernels/blind.h", "extern ZG_API Kernel<Blind> scale;\n", "Blind has no operands()"),
    ("tools/cmake/PublicHeaders.cmake", "set(ZG_ENGINE_HEADERS\n    runtime/gone.h)\n",
     "runtime/gone.h, which does not exist"),
    ("tools/cmake/PublicHeaders.cmake", "set(HEADERS runtime/tensor.h)\n", "no list of headers found"),
]


def check(planted, text):
    with tempfile.TemporaryDirectory() as folder:
        for name, contents in (TREE | ({planted: text} if planted else {})).items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(contents)
        return subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)


clean = check(None, None)
problems = [] if clean.returncode == 0 else [f"the tree without a violation is refused: {clean.stdout}"]
for name, text, words in PLANTED:
    result = check(name, text)
    reported = result.stdout.splitlines()
    if result.returncode == 0 or len(reported) != 1 or not reported[0].startswith(f"{name}: ") or \
            words not in reported[0]:
        problems.append(f"{name} with {text.splitlines()[0]!r}: expected one line, '{name}: ...{words}...', "
                        f"got status {result.returncode} and {result.stdout + result.stderr}")
print("\n".join(problems) or f"{len(PLANTED)} violations are reported by name")
sys.exit(1 if problems else 0)
