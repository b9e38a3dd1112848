"""Tables and plots of what `layers.py` measured, for README.md.

python benchmarks/report.py            # prints the tables, draws the plots
python benchmarks/report.py --publish  # writes them into README.md
"""

import argparse
import pathlib

import harness
import matplotlib
from layers import COMPARED
from layers import FAR
from layers import NEAR

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OURS = "two FLASH layers"


def table(rows):
    """At COMPARED tokens: shares, and times and memory of each peer over ours."""
    time, memory = {}, {}
    for row in rows:
        key = row["backend"], row["mode"], row["group"], row["causal"], row["step"]
        if row["length"] == COMPARED and row["row"] == "time":
            time.setdefault(key, []).append(row)
        if row["length"] == COMPARED and row["row"] == "memory":
            memory[key[0], row["name"], key[3], key[4]] = row["bytes"]
    lines = [
        f"Batch 1, {COMPARED:,} tokens, float32, {rows[0]['machine']}.",
        "",
        "| backend | mode | layer | step | ms | share of the matrix product "
        "| the peer's time and memory over ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for (backend, mode, _, causal, step), (ours, *others) in time.items():
        compared = []
        for row in others:
            text = f"{row['name']} {row['seconds'] / ours['seconds']:.2f}"
            sizes = [
                memory.get((backend, x["name"], causal, step)) for x in (row, ours)
            ]
            if None not in sizes:
                text += f", {sizes[0] / sizes[1]:.2f}"
            compared.append(text)
        share = f"{ours['share']:.2f}" if "share" in ours else ""
        name = f"{ours['name']}{', causal' if causal else ''}"
        cells = [backend, mode, name, step, f"{1e3 * ours['seconds']:.0f}", share]
        lines.append("| " + " | ".join([*cells, "; ".join(compared)]) + " |")
    return "\n".join(lines)


def growth_table(rows):
    """Of the linear layers: time and memory at FAR over those at NEAR."""
    sizes = {
        tuple(row[key] for key in ("backend", "name", "causal", "step", "length")): row
        for row in rows
        if row["row"] == "memory"
    }
    lines = [
        f"At {FAR:,} tokens over {NEAR:,}, eight times as many:",
        "",
        "| backend | layer | step | time | memory |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row["row"] != "growth":
            continue
        key = tuple(row[name] for name in ("backend", "name", "causal", "step"))
        far, near = (sizes[*key, length]["bytes"] for length in (FAR, NEAR))
        name = f"{row['name']}{', causal' if row['causal'] else ''}"
        cells = [row["backend"], name, row["step"], f"{row['times']:.2f}"]
        lines.append("| " + " | ".join([*cells, f"{far / near:.2f}"]) + " |")
    return "\n".join(lines)


def crossover(rows):
    """Two FLASH layers beside the Transformer++ block: ratios by length."""
    found = {
        (row["backend"], row["name"], row["length"], row["row"]): row
        for row in rows
        if row["group"] == "Model" and row["step"] == "train"
    }
    lines = []
    for backend, name, length, kind in found:
        ours = found.get((backend, OURS, length, kind))
        if kind != "time" or name == OURS or ours is None:
            continue
        times = found[backend, name, length, kind]["seconds"] / ours["seconds"]
        sizes = [
            found.get((backend, n, length, "memory"), {}).get("bytes")
            for n in (name, OURS)
        ]
        memory = sizes[0] / sizes[1] if None not in sizes else None
        lines.append(
            dict(backend=backend, name=name, length=length, times=times, memory=memory)
        )
    return lines


def draw(rows, path):
    """How many times the time and memory of two FLASH layers a Transformer++ takes."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    points = crossover(rows)
    for backend, name in dict.fromkeys((p["backend"], p["name"]) for p in points):
        mine = [p for p in points if (p["backend"], p["name"]) == (backend, name)]
        lengths = [p["length"] for p in mine]
        label = f"{name}, {backend}"
        axes[0].plot(lengths, [p["times"] for p in mine], marker="o", label=label)
        axes[1].plot(lengths, [p["memory"] for p in mine], marker="o", label=label)
    for axis, title in zip(axes, ("time of a training step", "memory of it")):
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="tokens", title=title)
        axis.set_ylabel("Transformer++ over FLASH")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=pathlib.Path, default=harness.RESULTS)
    parser.add_argument("--publish", action="store_true", help="renew README.md")
    arguments = parser.parse_args()
    rows = harness.read("layers", arguments.input)
    tables = {"layers table": table(rows), "growth table": growth_table(rows)}
    draw(rows, arguments.input / "crossover.png")
    for part, text in tables.items():
        print(text, "\n")
        if arguments.publish:
            harness.publish(part, text)


if __name__ == "__main__":
    main()
