# SPDX-License-Identifier: Apache-2.0
"""What the lines of one run of scripts/bench say together: ratios, targets, and the table for the README."""

# Milliseconds of a recorded step over those of the peer's best mode in the same run.
TARGETS = {"tiny-launch": 0.5, "gpt2-124m-b1": 0.75, "gpt2-124m": 0.88, "gpt-1b": 0.9, "moe-small": 0.6, "moe-qwen3": 0.7}
SETUP_SECONDS = 2  # a trainer, its eager steps and the capture, at most
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


class BadReadme(Exception):
    """A README without one pair of markers."""


def is_timing(line):
    return line.get("ms") is not None and "workload" in line


def is_ours(line):
    return line.get("peer", "").split()[:1] == ["encore"]


def best_of(lines, ours):
    """The fastest line of each workload and precision, of one side."""
    best = {}
    for line in lines:
        if is_timing(line) and is_ours(line) == ours:
            key = line["workload"], line.get("precision", "bf16")
            if key not in best or line["ms"] < best[key]["ms"]:
                best[key] = line
    return best


def complete(lines, floors):
    """The lines with `ratio` to the peer's best mode of the same workload and precision, and ours with `floor_ms`,
    `target` and what holds. `floors` gives milliseconds for a workload. A ratio that cannot be had is left out."""
    theirs = best_of(lines, ours=False)
    completed = []
    for line in lines:
        line = dict(line)
        completed.append(line)
        if not is_timing(line):
            continue
        best = theirs.get((line["workload"], line.get("precision", "bf16")))
        if best is not None:
            line["ratio"] = round(line["ms"] / best["ms"], 4)
        if not is_ours(line):
            continue
        if line["workload"] in floors:
            line["floor_ms"] = round(floors[line["workload"]], 4)
        if line["mode"] != "graph" or line["workload"] not in TARGETS:
            continue
        line["target"] = TARGETS[line["workload"]]
        if best is not None:
            line["target_holds"] = line["ratio"] <= line["target"]
            if line.get("peak_gib") is not None and best.get("peak_gib") is not None:
                line["memory_holds"] = line["peak_gib"] <= best["peak_gib"]
        if line.get("setup_s") is not None:
            line["setup_holds"] = line["setup_s"] < SETUP_SECONDS
    return completed


def number(value, digits=3):
    """With that many digits that count, and no exponent."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text else text


def verdict(value):
    return {True: "yes", False: "no"}.get(value, "")


def table(lines):
    """Markdown, a row for each of our recorded workloads, from lines that complete() returned."""
    theirs = best_of(lines, ours=False)
    head = ["workload", "encore eager", "encore layer", "encore graph", "torch's best", "ratio", "target", "holds",
            "floor", "memory, GiB (torch)", "set-up, s (torch)"]
    rows = []
    for line in lines:
        if not (is_timing(line) and is_ours(line) and line["mode"] == "graph"):
            continue
        precision = line.get("precision", "bf16")
        modes = {other["mode"]: other["ms"] for other in lines
                 if is_timing(other) and is_ours(other) and other["workload"] == line["workload"]
                 and other.get("precision", "bf16") == precision}
        best = theirs.get((line["workload"], precision), {})
        beside = lambda name: f"{number(line.get(name))} ({number(best[name])})" if best.get(name) is not None \
            else number(line.get(name))
        rows.append([line["workload"], number(modes.get("eager")), number(modes.get("layer")), number(line["ms"]),
                     f"{number(best['ms'])} ({best['mode']})" if best else "",
                     f"{line['ratio']:.3f}" if "ratio" in line else "", number(line.get("target")),
                     verdict(line.get("target_holds")), number(line.get("floor_ms")), beside("peak_gib"),
                     beside("setup_s")])
    used = [i for i, _ in enumerate(head) if any(row[i] for row in rows)]
    show = lambda cells: "| " + " | ".join(cells[i] for i in used) + " |\n"
    return show(head) + "|" + " --- |" * len(used) + "\n" + "".join(show(row) for row in rows) if rows else ""


def section(lines, command, file):
    """What stands between the README's markers."""
    run = next((line for line in lines if line.get("kind") == "run"), {})
    said = [f"Milliseconds a step on one {run.get('gpu') or 'machine without a GPU'}"
            + (f", driver {run['driver']}" if run.get("driver") else "")
            + (f", {run['date'][:10]}" if run.get("date") else "")
            + (f", commit {run['commit'][:12]}" if run.get("commit") else "")
            + "; all in one run, torch in the fastest of its modes. Floor: what the operations, bytes and launches of the "
              "step take at the rates that the machine reaches. Set-up: until the first timed step; torch's includes "
              "those too, and not making the model."]
    return "\n".join([*said, "", table(lines).rstrip("\n"), "", f"`{command}`"
                      + (f"; all numbers: `{file}`" if file else ""), ""])


def with_section(readme, text):
    """The README with another text between its markers."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise BadReadme(f"it must have the lines {BEGIN} and {END}, each once and in this order")
    return readme[:readme.index(BEGIN) + len(BEGIN)] + "\n\n" + text + "\n" + readme[readme.index(END):]
