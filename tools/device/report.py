"""The results of a part of tools/gpu_check or tools/hpu_check: DEVICE-PART.json and DEVICE-PART.md."""
import json
import os

import measure

RESULTS = ("passed", "FAILED", "SKIPPED", "LATE")


def table(check, results, arguments):
    title = f"tools/{check.kit.device}_check" + (" (a rehearsal on the emulator: no device)" if check.rehearses else "")
    lines = [measure.heading(title, check.kit.commit), f"`tools/{check.kit.device}_check {' '.join(arguments)}`", ""]
    for warning in check.record["warnings"]:
        lines += [f"**{warning}**", ""]
    lines += ["| step | result | s | SM MHz (least), W | what |", "|---|---|---:|---:|---|"]
    lines += [f"| {r['step']} | {r['result']} | {r['seconds']:.0f} | {r['clocks']} | "
              f"{' '.join(r['what'].replace('|', '/').split())[:600]} |" for r in results]
    ops = check.record.get("ops", [])
    if ops:
        lines += ["", "| op of a traced step | launches | predicted ms | measured ms |", "|---|---:|---:|---:|"]
        lines += [f"| {row['op']} | {row['launches']} | {milliseconds(row.get('predicted_s'))} | "
                  f"{milliseconds(row.get('measured_s'))} |" for row in ops]
    light = check.record.get("speed_of_light", [])
    if light:
        lines += ["", "| launch | grid | us | SM % | memory % |", "|---|---|---:|---:|---:|"]
        lines += [f"| {row['kernel']} | {row['grid']} | {1e-3 * row.get('Duration ns', 0) or row.get('Duration us', 0):.1f} "
                  f"| {row.get('Compute (SM) Throughput %', 0):.0f} | {row.get('Memory Throughput %', 0):.0f} |"
                  for row in light]
    if check.kernels:
        lines += ["", "| kernel | shape | dtype | us | TFLOP/s | GB/s | % of limit | PyTorch, us | "
                  "as fast as it |", "|---|---|---|---:|---:|---:|---:|---:|---:|"]
    lines += [row["line"] + peer_cells(row) for row in check.kernels]
    return "\n".join(lines) + "\n"


def kernel(row):
    """A row of `bench kernels` with its line of the table."""
    limit = row.get("percent_of_limit")
    return {**row, "line": f"| {row['case']} | {row['shape']} | {row['dtype']} | {1e6 * row['median_s']:.1f} | "
                           f"{1e-12 * row['flops_per_s']:.1f} | {1e-9 * row['bytes_per_s']:.0f} | "
                           f"{'' if limit is None else f'{limit:.0f}'} |"}


def peer_cells(row):
    peer = row.get("peer_s")
    return "  |  |" if peer is None else f" {1e6 * peer:.1f} | {peer / row['median_s']:.2f}x |"


def milliseconds(seconds):
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def count_line(results):
    counts = {result: sum(r["result"] == result for r in results) for result in RESULTS}
    return (f"{counts['passed']} passed, {counts['FAILED']} failed, {counts['SKIPPED']} skipped"
            + (f", {counts['LATE']} late" if counts["LATE"] else ""))


def write(check, part, results, arguments, out):
    """Replaces both files, each atomically: a reader never sees a part of one."""
    check.record["part"], check.record["steps"] = part, results
    name = f"{check.kit.device}-{part}"
    text = table(check, results, arguments)
    out.mkdir(parents=True, exist_ok=True)
    for file, content in ((f"{name}.json", json.dumps(check.record, indent=1) + "\n"), (f"{name}.md", text)):
        (out / f".{file}.part").write_text(content, encoding="utf-8")
        os.replace(out / f".{file}.part", out / file)
    return text
