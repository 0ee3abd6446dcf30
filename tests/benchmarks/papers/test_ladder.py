"""The ladder's kernels are right and short, and have the costs on their page."""

import re

import numpy as np
import pytest

from benchmarks.papers import ladder
from benchmarks.papers.ladder import (
    LADDER,
    LAYER,
    PAGE,
    Step,
    counted,
    opened,
    operands,
    run,
    steps,
)
from cusim.build import ORDERED, PLAIN, PROFILE, Build
from kernels.problems.conv import same_padded

SMALL = same_padded((9, 9), 3, 64, 32)
"""Return an odd size, whose last tiles extend beyond the image."""


@pytest.mark.parametrize("step", steps(SMALL), ids=lambda step: step.source)
def test_a_step_computes_the_layer(step: Step) -> None:
    assert_right(step, PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("step", steps(SMALL), ids=lambda step: step.source)
def test_a_step_orders_its_reads_and_writes(step: Step) -> None:
    assert_right(step, ORDERED)


def assert_right(step: Step, build: Build) -> None:
    arrays, truth = operands(SMALL)
    with opened(build) as device:
        y = run(device, step, arrays)
    assert np.allclose(y.reshape(truth.shape), truth, atol=5e-5)


def test_each_step_is_a_file_of_at_most_80_lines_that_opens_with_its_idea() -> None:
    sources = [step.source for step in steps()]
    assert sources == sorted(each.name for each in LADDER.glob("*.cu"))
    assert len(sources) == 6
    for file in LADDER.iterdir():
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 80, file
        assert lines[0].startswith("// "), file
        assert file.name in PAGE.read_text(encoding="utf-8"), file


def _row(source: str) -> str:
    (row,) = re.findall(rf"(?m)^\| \[{re.escape(source)}\].*$", PAGE.read_text(encoding="utf-8"))
    return str(row)


@pytest.mark.parametrize("source", ["4_fused.cu"])
def test_a_steps_costs_are_those_of_the_page(source: str) -> None:
    (step,) = (each for each in steps() if each.source == source)
    arrays, _ = operands(LAYER)
    with opened(PROFILE) as device:
        found = ladder.count(device, step, arrays)
    (made,) = (row for row in ladder.table({each.source: found for each in steps()})[1:]
               if source in row[0])  # fmt: skip
    assert f"| {' | '.join(made)} |" == _row(source), "make papers writes it"


@pytest.mark.slow
def test_the_page_is_what_a_fresh_run_prints() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert ladder.page(text, counted()) == text


def test_what_the_page_says_of_the_steps_holds() -> None:
    cells = {step.source: _row(step.source).split(" | ") for step in steps()}
    products, nbytes, time = (
        {source: float(row[column].strip("| ")) for source, row in cells.items()}
        for column in (2, 3, 6)
    )
    assert products["1_direct.cu"] / products["3_apart.cu"] == pytest.approx(2.25, abs=0.01)
    assert nbytes["1_direct.cu"] > 10 * nbytes["2_tiled.cu"]
    assert nbytes["4_fused.cu"] < nbytes["3_apart.cu"]
    assert time["6_dependent.cu"] < time["5_split.cu"] < time["4_fused.cu"]
    assert time["6_dependent.cu"] < time["3_apart.cu"] < time["2_tiled.cu"]
