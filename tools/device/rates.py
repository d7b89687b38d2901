"""A plan's predicted time of each op beside the time that a trace measured, and a peaks file whose shares are
measured. The schemas are those of bench/peaks/README.md."""


def seconds_by_op(trace):
    """{op: [spans, seconds]} of rank 0's kernels in a Chrome trace: of the device's own track, if there is one, by the
    names of kernels; else of the host's, by ops. Time within an inner span is the inner op's. The host waits for each
    kernel of a trace; the shortest of its spans is taken for that wait, and subtracted."""
    events = [event for event in trace["traceEvents"] if event["pid"] == 0]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    track = "kernels" if "kernels" in tracks.values() else "compute"
    spans = [event for event in events if event.get("cat") == "kernel" and tracks.get(event["tid"]) == track]
    spans.sort(key=lambda span: (span["ts"], -span["dur"]))
    wait = min((span["dur"] for span in spans), default=0) if track == "compute" else 0
    found, open_spans = {}, []
    for span in spans:
        while open_spans and open_spans[-1]["ts"] + open_spans[-1]["dur"] <= span["ts"]:
            open_spans.pop()
        own = max(0.0, 1e-6 * (span["dur"] - wait))
        row = found.setdefault(span["name"], [0, 0.0])
        row[0] += 1
        row[1] += own
        if open_spans:
            found[open_spans[-1]["name"]][1] -= own
        open_spans.append(span)
    return found


def rows_of_plan(plan):
    """(times in a step, row) of each kernel that a plan counts."""
    times = {"per_micro_batch": plan.get("predicted", {}).get("micro_batches", 1), "per_step": 1}
    return [(times[part], row) for part in times for row in plan[part]["kernels"]]


def beside(plan, measured):
    """Rows of op, launches, predicted and measured seconds, the largest measured first. `plan` may be None."""
    rows = {}
    for times, row in rows_of_plan(plan) if plan else ():
        found = rows.setdefault(row["op"], {"op": row["op"], "launches": 0, "predicted_s": 0.0})
        found["launches"] += times * row["launches"]
        found["predicted_s"] += times * row["seconds"]
    for op, (count, seconds) in measured.items():
        found = rows.setdefault(op, {"op": op, "launches": count})
        found["measured_s"] = max(0.0, seconds)
    return sorted(rows.values(), key=lambda row: -row.get("measured_s", 0.0))


def share_of(peaks, row, key):
    """The last entry's share that fits the row: a number or a list; None: there is none."""
    names = ("class", "op", "kernel", "dtype")
    fitting = [entry for entry in peaks.get("efficiencies", []) if key in entry and
               all(entry[name] == row[name] for name in names if name in entry)]
    return fitting[-1][key] if fitting else None


def refitted(peaks, plan, measured, name, source):
    """A copy of the peaks with a measured share, at most 1, for each kernel of the plan whose op was measured. The kernels
    of an op share its factor, because a trace has one span for all of them."""
    result = {**peaks, "name": name, "efficiencies": list(peaks["efficiencies"])}
    factors = {row["op"]: row["predicted_s"] / row["measured_s"] for row in beside(plan, measured)
               if row.get("predicted_s") and row.get("measured_s")}
    for _, row in rows_of_plan(plan):
        share = share_of(peaks, row, row["bound"]) if row["op"] in factors else None  # of a launch there is none
        if share is None:
            continue

        def scaled(part, factor=factors[row["op"]]):
            return min(1.0, float(f"{part * factor:.3g}"))

        value = [[size, scaled(part)] for size, part in share] if isinstance(share, list) else scaled(share)
        result["efficiencies"].append({"op": row["op"], "kernel": row["kernel"], "dtype": row["dtype"],
                                       row["bound"]: value, "source": source})
    return result
