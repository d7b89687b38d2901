#!/usr/bin/env python3
"""Makes tests/reference/fixtures/numpy with numpy: files as np.save() and np.savez() write them, and how
numpy prints the arrays in them (text.json). Not needed to run the tests; to make the files again, with numpy 2:

    python3 tests/reference/make_numpy_fixtures.py
"""
import json
import pathlib
import warnings

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "fixtures" / "numpy"
nan, inf = float("nan"), float("inf")


def arrays():
    random = np.random.default_rng(1)
    grid = np.arange(24).reshape(2, 3, 4)
    return {
        "f32": np.array([[0, 1.5], [-2.25, 0.1]], np.float32),
        "f32_special": np.array([nan, inf, -inf, -0.0, 12.5], np.float32),
        "f32_only_nan": np.array([nan, nan], np.float32),
        "f32_wide_range": np.array([1e-10, 0.1, 1.5e5, nan], np.float32),
        "f32_large": np.array([1e8, 123456789, -3], np.float32),
        "f32_thousand": np.array([1, 1000, 3.25], np.float32),
        "f32_many_digits": random.standard_normal((4, 5)).astype(np.float32),
        "f32_ones": np.ones((3, 2), np.float32),
        "f64": random.standard_normal((3, 4)),
        "f64_third": np.array([1 / 3, 2e-5, 1e-100, 1e100]),
        "f64_scalar": np.array(0.1),
        "f16": np.array([0.1, 65504, 6e-8], np.float16),
        "f16_plain": np.array([[0.1, 2.5], [100, -7]], np.float16),
        "i32": grid.astype(np.int32),
        "i64": np.array([-(2 ** 63), 2 ** 63 - 1, 0]),
        "u8": np.array([[0, 255], [7, 10]], np.uint8),
        "bool": np.array([[True, False], [False, True]]),
        "empty": np.zeros((0,), np.float32),
        "empty_rows": np.zeros((3, 0), np.float32),
        "rank_4": np.arange(16).reshape(2, 2, 2, 2).astype(np.int32),
        "wrapped": np.arange(60).astype(np.int64) * 1000,
        "wrapped_rows": random.standard_normal((2, 13)),
        "long": np.arange(1001).astype(np.int32),
        "not_summarised": np.arange(1000).reshape(2, 500).astype(np.int32),
        "summary": random.standard_normal((40, 30)).astype(np.float32),
        "summary_of_rows": np.arange(1200).reshape(300, 4).astype(np.float64),
        "summary_of_3": np.arange(1500).reshape(10, 5, 30).astype(np.int64),
    }


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    all_arrays = arrays()
    np.savez(FOLDER / "arrays.npz", **all_arrays)
    text = {name: str(array) if array.ndim else np.array2string(array) for name, array in all_arrays.items()}
    (FOLDER / "text.json").write_text(json.dumps(text, indent=1) + "\n")
    grid = np.arange(24).reshape(2, 3, 4)
    np.savez_compressed(FOLDER / "compressed.npz", grid=grid)
    np.save(FOLDER / "columns.npy", np.asfortranarray(grid.astype(">i4")))
    np.save(FOLDER / "big_endian.npy", np.linspace(0, 1, 5, dtype=">f8"))
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(FOLDER / f"version{version[0]}.npy", "wb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.lib.format.write_array(file, np.array([[1, 2, 3]], np.float16), version=version)


if __name__ == "__main__":
    main()
