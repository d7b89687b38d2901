"""The results of tools/gpu_check: gpu-check.json and gpu-check.md."""
import json
import os

import measure

RESULTS = ("passed", "FAILED", "SKIPPED", "LATE")


def table(check, results, arguments):
    title = "tools/gpu_check" + (" (a rehearsal on the emulator: no GPU)" if check.rehearses else "")
    lines = [measure.heading(title, check.kit.commit), f"`tools/gpu_check {' '.join(arguments)}`", ""]
    for warning in check.record["warnings"]:
        lines += [f"**{warning}**", ""]
    lines += ["| step | result | s | what |", "|---|---|---:|---|"]
    lines += [f"| {r['step']} | {r['result']} | {r['seconds']:.0f} | "
              f"{' '.join(r['what'].replace('|', '/').split())[:600]} |" for r in results]
    if check.kernels:
        lines += ["", "| kernel | shape | dtype | us | TFLOP/s | GB/s | % of limit | PyTorch, us | "
                  "as fast as it |", "|---|---|---|---:|---:|---:|---:|---:|---:|"]
    for row in check.kernels:
        limit, peer = row.get("percent_of_limit"), row.get("peer_s")
        seconds = row.get("median_s")
        if not seconds:  # it did not fit in memory
            continue
        lines.append(
            f"| {row['case']} | {row['shape']} | {row['dtype']} | {1e6 * seconds:.1f} | "
            f"{1e-12 * row['flops_per_s']:.1f} | {1e-9 * row['bytes_per_s']:.0f} | "
            f"{'' if limit is None else f'{limit:.0f}'} | "
            f"{'' if peer is None else f'{1e6 * peer:.1f}'} | "
            f"{'' if peer is None else f'{peer / seconds:.2f}x'} |")
    return "\n".join(lines) + "\n"


def count_line(results):
    counts = {result: sum(r["result"] == result for r in results) for result in RESULTS}
    return (f"{counts['passed']} passed, {counts['FAILED']} failed, {counts['SKIPPED']} skipped"
            + (f", {counts['LATE']} late" if counts["LATE"] else ""))


def write(check, results, arguments, out):
    """Replaces both files, each atomically: a reader never sees a part of one."""
    check.record["steps"] = results
    text = table(check, results, arguments)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in (("gpu-check.json", json.dumps(check.record, indent=1) + "\n"),
                          ("gpu-check.md", text)):
        part = out / f".{name}.part"
        part.write_text(content, encoding="utf-8")
        os.replace(part, out / name)
    return text
