"""Tables and a plot of what `layers.py` measured, for README.md.

python benchmarks/report.py            # prints the tables, draws the plot
python benchmarks/report.py --publish  # writes them into README.md
"""

import argparse
import functools
import math
import pathlib

import harness
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FLASH = "two FLASH layers"
PLOT = "crossover.png"


def key_of(row, *names):
    return tuple(row[name] for name in names)


def place_of(row):
    return key_of(row, "backend", "name", "causal", "step")


def label_of(row):
    return f"{row['name']}{', causal' if row['causal'] else ''}"


def table_of(columns, rows):
    """Lines of a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machines(rows):
    """Where it was measured, and with what."""
    found = {}
    for row in rows:
        versions = ", ".join(" ".join(version) for version in row["versions"].items())
        found.setdefault(row["machine"], set()).add(versions)
    return "\n".join(
        f"Measured on {machine}: {'; '.join(sorted(versions))}."
        for machine, versions in found.items()
    )


def speed(times, memory):
    """Each layer: share of the matrix product; its peers' time and memory over it."""
    sizes = {
        (place_of(row), row["length"], row["mode"]): row["bytes"] for row in memory
    }
    sets = {}
    for row in times:
        if row["group"] in ("FLASH", "GAU", "Flow"):
            place = key_of(row, "backend", "group", "causal", "step", "mode")
            sets.setdefault(place, []).append(row)
    lines = []
    for rows in sets.values():
        (ours,) = [row for row in rows if "share" in row]
        others = [row for row in rows if row is not ours]
        own = sizes.get((place_of(ours), ours["length"], ours["mode"]))
        compared = []
        for row in others:
            text = f"{row['name']} {row['seconds'] / ours['seconds']:.2f}"
            theirs = sizes.get((place_of(row), row["length"], row["mode"]))
            if own and theirs:
                text += f" (memory {theirs / own:.1f})"
            compared.append(text)
        cells = [ours["backend"], ours["mode"], label_of(ours), f"{ours['length']:,}"]
        cells += [ours["step"], f"{1e3 * ours['seconds']:.0f}", f"{ours['share']:.2f}"]
        lines.append([*cells, "; ".join(compared)])
    columns = ["backend", "mode", "layer", "tokens", "step", "ms", "share"]
    return table_of([*columns, "times as long takes"], lines)


def growth(rows, memory):
    """Of the linear layers: time and memory at FAR over those at NEAR."""
    sizes = {(place_of(row), row["length"]): row["bytes"] for row in memory}
    lines = []
    for row in rows:
        lengths = row["length"], row["near"]
        far, near = [sizes.get((place_of(row), length)) for length in lengths]
        ratio = f"{far / near:.2f}" if far and near else ""
        cells = [row["backend"], label_of(row), row["step"], f"{row['times']:.2f}"]
        lines.append([*cells, ratio])
    return table_of(["backend", "layer", "step", "time", "memory"], lines)


def compiling(rows):
    """Seconds of the first call by length."""
    found, lengths = {}, sorted({row["length"] for row in rows})
    for row in rows:
        key = row["backend"], row["mode"], label_of(row)
        found.setdefault(key, {})[row["length"]] = row
    lines = [
        [*key, *(f"{by_length[length]['seconds']:.1f}" for length in lengths)]
        for key, by_length in found.items()
    ]
    return table_of(["backend", "mode", "layer", *map("{:,}".format, lengths)], lines)


def remat(times, memory):
    """Time and memory of a model that keeps less."""
    lines = {}
    for row in times:
        if row["group"] == "Remat":
            cells = [row["backend"], row["mode"], row["name"]]
            lines[cells[0], cells[2]] = [*cells, f"{row['seconds']:.2f}", ""]
    for row in memory:
        key = row["backend"], row["name"]
        if row["group"] == "Remat" and key in lines:
            lines[key][-1] = f"{row['bytes'] / 2**20:,.0f}"
    return table_of(["backend", "mode", "model", "seconds", "MB"], lines.values())


def ratios(times, memory):
    """Peers over ours, `{(backend, mode, peer): {"times": {length: x}, ...}}`."""
    found = {}
    for kind, rows, value in (("times", times, "seconds"), ("memory", memory, "bytes")):
        rows = [row for row in rows if row["group"] == "Model"]
        ours = {
            key_of(row, "backend", "length"): row[value]
            for row in rows
            if row["name"] == FLASH
        }
        for row in rows:
            mine = ours.get(key_of(row, "backend", "length"))
            if row["name"] != FLASH and mine:
                by_kind = found.setdefault(key_of(row, "backend", "mode", "name"), {})
                by_kind.setdefault(kind, {})[row["length"]] = row[value] / mine
    return found


def crossover(by_length):
    """The length from which on the ratio is over 1, between those measured."""
    points = sorted(by_length.items())
    if points[-1][1] < 1:
        return f"above {points[-1][0]:,}"
    for (low, a), (high, b) in reversed([*zip(points, points[1:])]):
        if a < 1:
            part = math.log(1 / a) / math.log(b / a)
            return f"{low * (high / low) ** part:,.0f}"
    return f"below {points[0][0]:,}"


def crossovers(found):
    lines = []
    for key, by_kind in found.items():
        by_length = by_kind.get("times", {})
        if not by_length:
            continue
        cells = [", ".join(f"{n:,}: {x:.2f}" for n, x in sorted(by_length.items()))]
        lines.append([*key, crossover(by_length), *cells])
    columns = ["backend", "mode", "Transformer", "crossover", "its time over FLASH's"]
    return table_of(columns, lines)


def draw(found, path):
    """How many times the time and memory of two FLASH layers a Transformer takes."""
    kinds = {kind for by_kind in found.values() for kind in by_kind}
    kinds = [kind for kind in ("times", "memory") if kind in kinds]
    figure, (axes,) = plt.subplots(
        1, len(kinds), figsize=(5 * len(kinds), 4), layout="constrained", squeeze=False
    )
    for axis, kind in zip(axes, kinds):
        for (backend, mode, peer), by_kind in found.items():
            points = sorted(by_kind.get(kind, {}).items())
            if points:
                axis.plot(*zip(*points), marker="o", label=f"{peer}, {backend} {mode}")
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("tokens")
        axis.set_title(kind.removesuffix("s"))
    axes[0].set_ylabel("Transformer over FLASH, a step of training")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def importing(rows):
    """Seconds that the package adds to an import of Keras."""
    found = ", ".join(f"{row['seconds']:.2f} ({row['backend']})" for row in rows)
    return f"`import keras_flash` after `import keras` takes, in seconds: {found}."


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=pathlib.Path, default=harness.RESULTS)
    parser.add_argument("--publish", action="store_true", help="renew README.md")
    arguments = parser.parse_args()
    read = functools.partial(harness.read, folder=arguments.input)
    times, memory = read("times"), read("memory")
    grown, compiled = read("growth"), read("compiling")
    found = ratios(times, memory)
    draw(found, arguments.input / PLOT)
    tables = {
        "machine": machines([*times, *memory, *grown, *compiled]),
        "speed table": speed(times, memory),
        "growth table": growth(grown, memory),
        "crossover table": crossovers(found),
        "remat table": remat(times, memory),
        "compiling table": compiling(compiled),
        "importing": importing(read("importing")),
    }
    for part, text in tables.items():
        print(text, "\n")
        if arguments.publish:
            harness.publish(part, text)


if __name__ == "__main__":
    main()
