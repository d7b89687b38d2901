#!/usr/bin/env python3
"""Makes tests/reference/fixtures/convolution.json with PyTorch: values and gradients, in double, of convolutions, pooling
and group_norm. Not needed to run the tests.

    python3 tests/reference/make_convolution_fixtures.py
"""
import pathlib

import torch
from make_composed_fixtures import case_of, write
from torch.nn import functional as F

OUT = pathlib.Path(__file__).parent / "fixtures" / "convolution.json"
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)

# An op of zerograd, PyTorch's function, the shapes of the inputs, numbers: strides, paddings, dilations, groups,
# paddings of the output; of pools kernel, stride, padding, dilation.
CASES = [
    ("conv1d", F.conv1d, [(2, 4, 9), (6, 2, 3), (6,)], [2, 1, 2, 2]),
    ("conv1d", F.conv1d, [(1, 3, 5), (3, 1, 2)], [1, 2, 1, 3]),
    ("causal", lambda x, w, b: F.conv1d(F.pad(x, (6, 0)), w, b, dilation=2, groups=3), [(2, 3, 7), (3, 1, 4), (3,)], []),
    ("conv2d", F.conv2d, [(2, 4, 6, 7), (6, 2, 3, 2), (6,)], [[2, 1], [1, 2], [1, 2], 2]),
    ("conv2d", F.conv2d, [(3, 2, 5, 4), (3, 2, 3, 3), (3,)], [[1, 1], [1, 1], [1, 1], 1]),
    ("conv2d", F.conv2d, [(2, 3, 7, 5), (3, 1, 3, 2)], [[2, 3], [1, 0], [2, 1], 3]),
    ("conv_transpose1d", F.conv_transpose1d, [(2, 4, 5), (4, 3, 3), (6,)], [3, 1, 2, 2, 2]),
    ("conv_transpose2d", F.conv_transpose2d, [(2, 4, 3, 4), (4, 2, 3, 2), (4,)], [[2, 3], [1, 0], [1, 2], 2, [1, 2]]),
    ("conv_transpose2d", F.conv_transpose2d, [(1, 3, 4, 3), (3, 1, 3, 3), (3,)], [[2, 1], [1, 1], [1, 1], 3, [1, 0]]),
    ("avg_pool2d", F.avg_pool2d, [(2, 3, 6, 7)], [[2, 3], [2, 1], [1, 1], False, True]),
    ("avg_pool2d", F.avg_pool2d, [(3, 5, 5)], [[3, 2], [2, 2], [1, 1], False, False]),
    ("max_pool2d", F.max_pool2d, [(2, 3, 8, 9)], [[3, 2], [2, 1], [1, 1], [1, 2]]),
    ("max_pool2d, equal", F.max_pool2d, [(1, 2, 5, 6)], [[2, 3], [1, 2], [1, 1], [1, 1]]),
    ("group_norm", F.group_norm, [(2, 6, 3, 2), (6,), (6,)], [3]),
]


def main():
    cases = []
    for op, function, shapes, numbers in CASES:
        inputs = [torch.rand(shape).mul(4).sub(2).requires_grad_() for shape in shapes]
        if op.endswith("equal"):
            inputs = [x.detach().round().requires_grad_() for x in inputs]
        if op.startswith("conv_transpose"):
            stride, padding, dilation, groups, output_padding = numbers
            y = function(*inputs, stride, padding, output_padding, groups, dilation)
        elif op == "group_norm":
            y = function(inputs[0], numbers[0], *inputs[1:], eps=2.0**-16)
        elif op.startswith("conv"):
            y = function(*inputs, *([] if len(inputs) == 3 else [None]), *numbers)
        else:
            y = function(*inputs, *numbers)
        cases.append({"op": op.split(",")[0], "numbers": numbers, **case_of(inputs, y)})
    write(OUT, cases)


if __name__ == "__main__":
    main()
