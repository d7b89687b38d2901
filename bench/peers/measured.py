"""For the PyTorch programs of this folder: measures seconds and summarises them as zerograd bench does."""
import json
import time


def summary(seconds):
    ordered = sorted(seconds)
    return {"samples": len(ordered), "median_s": ordered[len(ordered) // 2], "best_s": ordered[0]}


def times(run, warm_up, samples):
    for _ in range(warm_up):
        run()
    seconds = []
    for _ in range(samples):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return summary(seconds)


def report(record):
    print(json.dumps(record))
