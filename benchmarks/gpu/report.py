"""Writes RESULTS.md, with tables and plots, and the README's section on GPUs from recorded
measurements."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from benchmarks.gpu.estimates import check, pairs, readings
from benchmarks.gpu.units import DECODING, HTTP, LAYER, NETWORK, missing, units
from benchmarks.kernels.plots import plot_rates, plot_speedups
from benchmarks.kernels.report import CONVOY, GOALS, compare, reached, summarise
from benchmarks.kernels.suites import BATCHES, MEASURED, NAMED, PAPERS_BATCHES, SUITES, batches_of
from benchmarks.plots import NoMatplotlibError
from benchmarks.rows import Row, fill, markdown
from kernels.tuning.constants import ASSUMED, Constants
from kernels.tuning.micro import cache_bytes_per_cycle, fitted

BEGIN, END = "<!-- benchmarks.gpu report -->", "<!-- end of the report -->"
"""The marks between which the README's section lies."""

_NOTES = """\
- Convoy's filters are transformed before the clock starts, as an engine does at start; cuDNN's
  Winograd plans transform filters while the clock runs.
- `torch eager, device` is bound by the host that launches node by node; `torch graph` is not.
- Scores are copied to pinned memory on every side. TF32 is off on every side.
- A time is the median of 200 replays of 20 copies, after 20 ms of warming up."""


def rows_of(lines: Iterable[Row]) -> list[Row]:
    """Return the measured rows in the recorded lines. A line holds several rows, and fields that
    these rows share. Every returned row includes these fields."""
    found: list[Row] = []
    for line in lines:
        shared = {key: value for key, value in line.items() if key != "rows"}
        found += [{**shared, **row} for row in line["rows"]]
    return found


def of_last(lines: Sequence[Row]) -> list[Row]:
    """Return the lines with the same commit and device as the last line."""
    last = lines[-1]
    return [line for line in lines if all(line[k] == last[k] for k in ("commit", "device"))]


def results(lines: Sequence[Row], folder: Path) -> str:
    """Return the text of RESULTS.md, and write the plots of RESULTS.md into `folder`."""
    if not lines:
        return "# Measured on a GPU\n\nNothing has been measured on a GPU yet.\n"
    lines = of_last(lines)
    rows, last = rows_of(lines), lines[-1]
    layers = of_kind(rows, LAYER)
    parts = [
        "# Measured on a GPU",
        "Written by `python -m benchmarks.gpu report` from `gpu.jsonl`.",
        f"{last['device']}, driver {last['driver']}, {last['compiler']}, commit {last['commit']}."
        f" Kernels were compiled by {last['compiler']}: the numbers hold only for this compiler.",
        *(_layer_table(layers, suite, n) for suite in MEASURED for n in batches_of(suite)),
        *(_totals(layers, suite) for suite in ("vgg-e", "vgg-e fp16")),
        _named(layers),
        _goals(layers),
        *_constants(rows),
        _cost_model(layers, rows),
        *_plots(layers, folder),
        _network_table(of_kind(rows, NETWORK)),
        _decoding_table(of_kind(rows, DECODING)),
        _http_table(of_kind(rows, HTTP)),
        "## How to read it\n\n" + _NOTES,
        _unmeasured(lines),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def section(lines: Sequence[Row]) -> str:
    """Return the README's section on GPUs. For each suite and N, it has a line that compares Convoy
    with the fastest other library."""
    if not lines:
        return "Nothing has been measured on a GPU yet."
    lines = of_last(lines)
    rows = rows_of(lines)
    told = [f"On {lines[-1]['device']}, commit {lines[-1]['commit']}, strict float32:", ""]
    for suite, layers in SUITES.items():
        for n in BATCHES:
            found = compare(of_kind(rows, LAYER), layers, n, "warm")
            if found:
                total = summarise(found, len(layers))
                told.append(
                    f"- {suite}, N = {n}: {total.geometric_mean:.2f} times as fast as the fastest"
                    f" other (geometric mean), faster in {total.won:.0%} of {total.measured} layers"
                )
    if len(told) == 2:
        told.append("- no layer was measured with both Convoy and another library")
    return "\n".join(told)


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    """Return the rows of one kind of measurement, such as LAYER or NETWORK."""
    return [row for row in rows if row["unit"].startswith(kind)]


def into_readme(text: str, told: str) -> str:
    """Return the README's text with its section on GPUs replaced by `told`. Raises ValueError if
    the comments around the section are missing."""
    return fill(text, BEGIN, END, told)


def _layer_table(rows: Sequence[Row], suite: str, n: int) -> str:
    layers, texts = MEASURED[suite], []
    for cache in ("warm", "cold"):
        found = compare(rows, layers, n, cache)
        if not found:
            continue
        total = summarise(found, len(layers))
        cells = [
            (
                pair.layer.name,
                f"{pair.ours['p50_us']:.2f}",
                f"{pair.best['p50_us']:.2f}",
                pair.best["side"],
                f"{pair.speedup:.2f}",
                f"{pair.of_peak:.0%}",
                f"{pair.ours.get('clocks', {}).get('sm_mhz', 0):.0f}",
            )
            for pair in found
        ]
        headings = (
            "layer",
            "Convoy, µs",
            "fastest other, µs",
            "which",
            "speed-up",
            "of peak",
            "MHz",
        )
        texts.append(
            f"### {suite}, N = {n}, cache {cache}: {total.geometric_mean:.2f} times as fast as the"
            f" fastest other, {total.measured} of {total.layers} layers\n\n"
            + markdown(headings, *cells)
        )
    return "\n\n".join(texts)


def _totals(rows: Sequence[Row], suite: str) -> str:
    """Return a table of the times summed over all layers of a suite, with a row for each N, as in
    Lavin & Gray's tables 5 and 6. A layer that occurs several times in the network is counted each
    time."""
    layers, cells = MEASURED[suite], []
    for n in PAPERS_BATCHES[suite]:
        found = compare(rows, layers, n, "warm")
        if len(found) == len(layers):
            total = summarise(found, len(layers))
            flops = 2 * n * sum(layer.count * layer.problem.macs for layer in layers)
            times = total.best_seconds, total.seconds
            numbers = (f"{number:.2f}" for t in times for number in (1e3 * t, 1e-12 * flops / t))
            cells.append((str(n), *numbers, f"{times[0] / times[1]:.2f}"))
    headings = ("N", "fastest others, ms", "TFLOPS", "Convoy, ms", "TFLOPS", "speed-up")
    return f"### {suite}, all layers\n\n" + markdown(headings, *cells) if cells else ""


def _named(rows: Sequence[Row]) -> str:
    """Return a table of the convolutions whose times the papers print. Return an empty text if no
    layer was measured."""
    cells = []
    for named in NAMED:
        found = compare(rows, [named.layer], named.n, "warm")
        ours = [f"{pair.speedup:.2f} over {pair.best['side']}" for pair in found] or ["waits"]
        what = f"{named.name}, N = {named.n}"
        cells.append((named.where, what, named.took, f"{named.speedup:.2f}", *ours))
    headings = ("where", "what", "there", "speed-up there", "here")
    table = markdown(headings, *cells)
    return f"### Configurations that papers name\n\n{table}" if rows else ""


def _goals(rows: Sequence[Row]) -> str:
    told = []
    for goal in GOALS:
        value = reached(rows, goal, "warm")
        if value is not None:
            verdict = "met" if value >= goal.at_least else "NOT MET"
            told.append(f"- {verdict}: {goal}: {value:.2f}, promised at least {goal.at_least}")
    return "## Goals\n\n" + "\n".join(told) if told else ""


def _constants(rows: Sequence[Row]) -> Iterable[str]:
    """Yield two tables: the measured times of small kernels, and the constants of the cost model,
    both as assumed and as fitted to these times."""
    found = readings(rows)
    if not found:
        return
    shown = [
        (
            reading.name,
            ", ".join(f"{k} {v}" for k, v in reading.conditions.items()),
            f"{reading.us:.3f}",
        )
        for reading in found
    ]
    yield "## Assumptions of the cost model\n\n" + markdown(("reading", "of", "µs"), *shown)
    rates = [
        (str(reading.conditions["blocks"]), f"{cache_bytes_per_cycle(reading):.1f}")
        for reading in found
        if reading.name == "cache"
    ]
    yield markdown(("blocks that read", "bytes per cycle and multiprocessor"), *rates)
    try:
        measured = fitted(found)
    except ValueError as missing:
        yield f"The constants are not fitted: {missing}."
        return
    yield markdown(
        ("constant", "assumed", "measured"),
        *(
            (name, f"{value:g}", f"{getattr(measured, name):.4g}")
            for name, value in asdict(ASSUMED).items()
        ),
    )


def _cost_model(layers: Sequence[Row], rows: Sequence[Row]) -> str:
    told = []
    for name, constants in _known_constants(rows).items():
        try:
            found = check(pairs(layers, constants))
        except ValueError as few:
            return f"## The cost model\n\nNot checked: {few}."
        told.append(f"- With constants as {name}: {found}.")
    return "## The cost model\n\n" + "\n".join(told)


def _known_constants(rows: Sequence[Row]) -> dict[str, Constants]:
    """Return the sets of constants with which the cost model is checked, by name: the assumed
    constants and, if there are measurements, the constants fitted to them."""
    try:
        return {"assumed": ASSUMED, "measured": fitted(readings(rows))}
    except ValueError:
        return {"assumed": ASSUMED}


def _plots(rows: Sequence[Row], folder: Path) -> list[str]:
    try:
        files = [*plot_speedups(rows, folder), *plot_rates(rows, folder)]
    except NoMatplotlibError as error:
        return [f"({error})"]
    return [f"![{file.stem}]({file.name})" for file in files]


def _network_table(rows: Sequence[Row]) -> str:
    times: dict[tuple[str, int, str], dict[str, float]] = {}
    for row in rows:
        times.setdefault((row["network"], row["n"], row["metric"]), {})[row["side"]] = row["p50_us"]
    sides = list(dict.fromkeys([CONVOY, *(side for time in times.values() for side in time)]))
    cells = [
        (network, str(n), metric, *(f"{time[s]:.1f}" if s in time else "" for s in sides))
        for (network, n, metric), time in times.items()
    ]
    headings = ("network", "N", "what", *(f"{side}, µs" for side in sides))
    return (
        "## Whole networks\n\n" + markdown(headings, *cells) + _network_goals(rows) if cells else ""
    )


def _network_goals(rows: Sequence[Row]) -> str:
    """Return text that says whether Convoy takes less device time than torch.compile, if both were
    measured."""
    told = ""
    for network, n in product(("VGG-19", "ResNet-50"), (1, 8)):
        times = {
            row["side"]: row["p50_us"]
            for row in rows
            if (row["network"], row["n"], row["metric"]) == (network, n, "device")
        }
        if CONVOY in times and "torch.compile" in times:
            verdict = "met" if times[CONVOY] < times["torch.compile"] else "NOT MET"
            told += f"\n- {verdict}: {network} at N = {n}, faster than torch.compile"
    return f"\n{told}" if told else ""


def _decoding_table(rows: Sequence[Row]) -> str:
    names = ("sampling", "n", "scan_bytes", "up_to")
    cells = [(*(str(row[name]) for name in names), f"{row['p50_us']:.1f}") for row in rows]
    headings = ("sampling", "N", "bytes of scans", "up to", "µs")
    return "## Decoding JPEG files\n\n" + markdown(headings, *cells) if cells else ""


def _http_table(rows: Sequence[Row]) -> str:
    cells = [
        (
            row["sent"],
            str(row["connections"]),
            f"{row['requests_per_s']:.0f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
        )
        for row in rows
    ]
    headings = ("sent", "connections", "requests per second", "p50, ms", "p99, ms")
    return "## SqueezeNet over HTTP\n\n" + markdown(headings, *cells) if cells else ""


def _unmeasured(lines: Sequence[Row]) -> str:
    every, left = units(), missing(units(), lines, lines[-1]["commit"])
    crashed = [line for line in lines if line["outcome"] in ("crashed", "faulted")]
    told = [f"## Unmeasured\n\n{len(left)} of {len(every)} measurements are missing."]
    told += [f"- {line['unit']}: {line['outcome']}, {line['why']}" for line in crashed]
    return "\n".join(told)
