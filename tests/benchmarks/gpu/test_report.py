"""The report from made-up rows, which are never committed."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.report import BEGIN, END, _cost_model, into_readme, results, section
from benchmarks.gpu.units import Unit, units
from benchmarks.kernels.suites import CUCONV, VGG_E
from benchmarks.rows import Row, append, read
from kernels.device.gpus import H200
from kernels.tuning.constants import Constants, microseconds
from kernels.tuning.heuristic import estimated_cycles, heuristic
from tests.kernels.tuning.test_micro import MEASURED, readings
from tests.support.benchmarks.made_up import rows_of

DEVICE = "made up"


def line(unit: Unit, *rows: Row, **changes: Any) -> Row:
    return {
        "kind": "measurement",
        "device": DEVICE,
        "driver": "0.0",
        "compiler": "NVRTC 0.0",
        "commit": "0",
        "date": "2000-01-01T00:00:00+00:00",
        "unit": str(unit),
        "n": unit.n,
        "side": unit.side,
        "seconds": 1.0,
        "outcome": "measured",
        "clocks": {"sm_mhz": 1980.0},
        "rows": list(rows),
        **changes,
    }


def layer_lines() -> list[Row]:
    return [
        line(Unit("layer", row["problem"].replace(f"N{n} ", "N1 "), n, row["side"]), row)
        for n in (1, 8)
        for row in rows_of(VGG_E, n, lambda _: 2.0)
    ]


def network_line(side: str, us: float, network: str = "SqueezeNet") -> Row:
    row = {"network": network, "n": 1, "side": side, "metric": "device", "p50_us": us}
    return line(Unit("network", network, 1, side), row)


HTTP = line(
    Unit("http", "V2 pixels", 8, "convoy"),
    {
        "sent": "V2 pixels",
        "connections": 8,
        "requests_per_s": 4321.0,
        "p50_ms": 1.25,
        "p99_ms": 2.5,
    },
)
DECODING = line(
    Unit("decoding", "4:2:0", 8, "convoy"),
    {"sampling": "4:2:0", "n": 8, "scan_bytes": 123, "up_to": "jpeg_write", "p50_us": 98.76},
)
CRASHED = line(
    Unit("layer", "some problem", 1, "cudnn"),
    outcome="crashed",
    why="the measuring process crashed with 11",
)


def test_the_tables_are_those_of_the_lines(tmp_path: Path) -> None:
    lines = [*layer_lines(), network_line("convoy", 86.0), network_line("torch graph", 120.5)]
    lines.append(DECODING)
    text = results([*lines, HTTP, CRASHED], tmp_path)
    assert "| 4:2:0 | 8 | 123 | jpeg_write | 98.8 |" in text
    assert (
        "### vgg-e, N = 1, cache warm: 2.00 times as fast as the fastest other, 9 of 9 layers"
        in text
    )
    assert "| 1980 |" in text, "the clock is beside the number"
    assert "| SqueezeNet | 1 | device | 86.0 | 120.5 |" in text
    assert "| V2 pixels | 8 | 4321 | 1.25 | 2.50 |" in text
    assert "made up, driver 0.0, NVRTC 0.0, commit 0." in text
    assert f"{len(units()) - len(lines) - 1} of {len(units())} measurements are missing" in text
    assert "layer some problem N1 cudnn: crashed, the measuring process crashed with 11" in text
    assert (tmp_path / "vgg-e.png").is_file()
    assert (
        "## The cost model\n\nNot checked: a check needs at least 8 measured layers, got 0." in text
    )


def micro_lines(constants: Constants) -> list[Row]:
    found: dict[str, list[Row]] = {}
    for each in readings(constants):
        row = {"reading": each.name, "conditions": dict(each.conditions), "p50_us": each.us}
        found.setdefault(each.name, []).append(row)
    return [line(Unit("micro", name, 1, "convoy"), *rows) for name, rows in found.items()]


@pytest.mark.parametrize(("ours", "verdict"), [(90.0, "met"), (100.0, "NOT MET")])
def test_a_network_is_held_against_torch_compile(tmp_path: Path, ours: float, verdict: str) -> None:
    lines = [
        network_line("convoy", ours, "VGG-19"),
        network_line("torch.compile", 100.0, "VGG-19"),
        network_line("convoy", ours, "ResNet-50"),
    ]
    text = results(lines, tmp_path)
    assert f"- {verdict}: VGG-19 at N = 1, faster than torch.compile" in text
    assert text.count("faster than torch.compile") == 1  # ResNet-50 was measured on one side alone


def test_what_the_model_assumes_stands_beside_what_was_measured(tmp_path: Path) -> None:
    lines = micro_lines(MEASURED)
    text = results(lines, tmp_path)
    assert "| launch_cycles | 1600 | 2500 |" in text
    assert "| idle_warps | 2 | 3.5 |" in text
    assert "| 132 | 31.0 |" in text
    assert "| chain | turns 500, trigger EPILOGUE, dependent True |" in text
    text = results(lines[1:], tmp_path)
    assert "The constants are not fitted: cache was not measured" in text
    assert "Assumptions of the cost model" not in results([HTTP], tmp_path)


def test_the_model_is_checked_with_what_it_assumes_and_with_what_was_measured() -> None:
    rows = [
        {
            "problem": str(layer.problem),
            "device": "NVIDIA H200",
            "side": "convoy",
            "cache": "warm",
            "choice": str(choice),
            "p50_us": microseconds(cycles),
        }
        for layer in CUCONV[:24]
        for choice in [heuristic(H200)(layer.problem)]
        for cycles in [estimated_cycles(layer.problem, choice, H200, warm=True, constants=MEASURED)]
    ]
    measured = [{**row, "device": DEVICE} for each in micro_lines(MEASURED) for row in each["rows"]]
    assumed_line, measured_line = _cost_model(rows, measured).splitlines()[2:]
    assert assumed_line.startswith("- With constants as assumed: on 24 layers")
    assert "the median error is 0%" in measured_line
    assert "the median error is 0%" not in assumed_line
    assert "as measured" not in _cost_model(rows, measured[:-1])


def test_without_lines_it_says_that_nothing_is_measured(tmp_path: Path) -> None:
    assert "Nothing has been measured" in results([], tmp_path)
    assert "Nothing has been measured" in section([])


def test_only_the_last_commit_and_device_are_told(tmp_path: Path) -> None:
    old = [{**each, "commit": "old"} for each in layer_lines()]
    text = results([*old, HTTP], tmp_path)
    assert "vgg-e" not in text
    assert "commit 0." in text


def test_the_readmes_section_is_replaced_and_nothing_else() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    told = section(layer_lines())
    assert into_readme(text, told) == f"before\n{BEGIN}\n{told}\n{END}\nafter\n"
    assert "- vgg-e, N = 1: 2.00 times as fast as the fastest other" in told
    with pytest.raises(ValueError, match="must contain the marks"):
        into_readme("no marks", told)


def test_lines_go_through_a_file(tmp_path: Path) -> None:
    append(tmp_path / "gpu.jsonl", layer_lines())
    assert read(tmp_path / "gpu.jsonl") == layer_lines()
