#!/usr/bin/env python3
"""Makes tests/reference/fixtures/indexing.json with PyTorch: what torch.gather and
torch.scatter_add give, and their gradients, where index is smaller than the other tensors. Not
needed to run the tests; run it to make the file again:

    python3 tests/reference/make_indexing_fixtures.py

All numbers are small multiples of 1/4, so that every sum is exact in any order.
"""
import json
import pathlib

import torch

OUT = pathlib.Path(__file__).parent / "fixtures" / "indexing.json"
generator = torch.Generator().manual_seed(20)

# index, axis, the indexed tensor, and scatter_add's source.
SHAPES = [([2, 2], 0, [3, 4], [2, 3]), ([2, 2], 1, [3, 4], [3, 2]), ([5, 1], 0, [2, 3], [5, 3]),
          ([1, 6], -1, [4, 3], [2, 7]), ([2, 3, 2], 1, [4, 2, 5], [2, 4, 3]),
          ([2, 3, 2], -3, [2, 5, 2], [2, 3, 2]), ([1, 2, 1, 3], 2, [2, 3, 4, 3], [2, 2, 5, 3]),
          ([7], 0, [3], [9]), ([0, 9], 1, [3, 4], [3, 4]), ([], 0, [], []), ([3], 0, [], [4])]


def quarters(shape):
    return torch.randint(-16, 17, shape, generator=generator) / 4


def case(index_shape, axis, shape, source_shape):
    extent = shape[axis] if shape else 1
    index = torch.randint(0, extent, index_shape, generator=generator)
    x, source = quarters(shape).requires_grad_(), quarters(source_shape).requires_grad_()
    picked = torch.gather(x, axis, index)
    dpicked = quarters(picked.shape)
    picked.backward(dpicked)
    dx, x.grad = x.grad, None
    summed = torch.scatter_add(x, axis, index, source)
    dsummed = quarters(summed.shape)
    # PyTorch has no gradient of a source larger than index: it takes the part that index reaches.
    part = source[tuple(slice(0, n) for n in index_shape)] if index.numel() else source
    if index.numel():
        torch.scatter_add(x, axis, index, part).backward(dsummed)
    else:
        x.grad, source.grad = dsummed.clone(), torch.zeros_like(source)
    return {"axis": axis, "index": index.flatten().tolist(), "index_shape": index_shape,
            **{name: {"shape": list(tensor.shape), "values": tensor.detach().flatten().tolist()}
               for name, tensor in {"x": x, "source": source, "gather": picked, "dgather": dpicked,
                                    "dx": dx, "scatter_add": summed, "dscatter_add": dsummed,
                                    "dbase": x.grad, "dsource": source.grad}.items()}}


OUT.write_text("[\n" + ",\n".join(json.dumps(case(*shapes)) for shapes in SHAPES) + "\n]\n")
