#!/usr/bin/env python3
"""Makes tests/reference/fixtures/indexed with numpy: datasets in the format that Megatron-LM's
MMapIndexedDataset reads and its builder writes, and what its GPT makes of them. Not needed to run
the tests; to make the files again:

    python3 tests/reference/make_indexed_fixtures.py      (with numpy)

NAME.bin and NAME.idx for each dtype, byte for byte what megatron-core 0.16.1's builder makes of them;
in int32 two sequences make a document. expected.json has their sequences; the borders that
Megatron-DeepSpeed's --split gives for numbers of documents; and the samples of uint16 in the
documents' order, cut as its GPT cuts them.
"""
import json
import pathlib
import struct

import numpy as np

OUT = pathlib.Path(__file__).parent / "fixtures" / "indexed"
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
LARGEST = {"uint8": 255, "int8": 127, "int16": 32767, "int32": 250879, "int64": 2**31 - 1,
           "uint16": 50256}
SPLITS = ["949,50,1", "969,30,1", "1,0,0", "9/1", "100", "1,1,1", "0.5,0.25,0.25", "98,1,1",
          "1,0,2"]
BLOCK = 16


def write(name, sequences, documents):
    dtype = np.dtype(name)
    arrays = [np.array(sequence, dtype=dtype) for sequence in sequences]
    (OUT / f"{name}.bin").write_bytes(b"".join(array.tobytes(order="C") for array in arrays))
    sizes = np.array([array.size for array in arrays], dtype=np.int32)
    pointers = np.zeros(len(arrays), dtype=np.int64)
    np.cumsum(sizes[:-1].astype(np.int64) * dtype.itemsize, out=pointers[1:])
    with open(OUT / f"{name}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", CODES[name]))
        file.write(struct.pack("<Q", len(sizes)) + struct.pack("<Q", len(documents)))
        for array in (sizes, pointers, np.array(documents, dtype=np.int64)):
            file.write(array.tobytes(order="C"))


def borders(split, documents):
    """Where the three parts begin, and the end."""
    weights = [float(weight) for weight in split.replace("/", ",").split(",")]
    weights = (weights + [0.0, 0.0])[:3]
    total, at = sum(weights), [0]
    weights = [weight / total for weight in weights]
    for weight in weights:
        at.append(at[-1] + int(round(weight * float(documents))))
    excess = at[-1] - documents
    return [0] + [border - excess for border in at[1:]]


def samples(sequences):
    """(tokens - 1) // BLOCK samples, the last token of each being the first of the next."""
    cut, document, offset = [], 0, 0
    for _ in range((sum(map(len, sequences)) - 1) // BLOCK):
        sample = []
        while True:
            piece = sequences[document][offset:offset + BLOCK + 1 - len(sample)]
            sample += piece
            if len(sample) == BLOCK + 1:
                offset += len(piece) - 1
                break
            document, offset = document + 1, 0
        cut.append(sample)
    return cut


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(1234)
    expected = {"sequences": {}, "borders": []}
    for name in CODES:
        sizes = random.randint(1, 40, size=24)
        sequences = [random.randint(0, LARGEST[name] + 1, size=size).tolist() for size in sizes]
        sequences[5][0] = LARGEST[name]
        step = 2 if name == "int32" else 1
        write(name, sequences, range(0, len(sequences) + 1, step))
        expected["sequences"][name] = sequences
    expected["samples"] = samples(expected["sequences"]["uint16"])
    for split in SPLITS:
        for documents in (2, 3, 7, 10, 100, 1001, 4567):
            expected["borders"].append(
                {"split": split, "documents": documents, "at": borders(split, documents)})
    (OUT / "expected.json").write_text(json.dumps(expected) + "\n")


main()
