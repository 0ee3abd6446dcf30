"""Compiling in advance compiles exactly the kernels that an engine will load."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.device.compile import compile_kernel
from kernels.device.device import Instantiation
from kernels.device.gpus import ARCHITECTURES
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import Facts, heuristic
from models import BUILT_IN_MODEL, EngineError, load_classifier
from models.plan import build_plan
from models.tuning.precompile import precompile


def test_an_engine_finds_every_kernel_that_it_loads_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    heard: list[tuple[int, int]] = []
    count = precompile(
        digits,
        ["80", "90a"],
        max_batch=2,
        cache=tmp_path,
        progress=lambda done, total: heard.append((done, total)),
    )
    assert heard[-1] == (count, count)
    monkeypatch.setattr(
        "kernels.device.nvrtc.compile_program", None
    )  # nothing is compiled from here on
    graph = digits.rewritten.graph
    for n in (1, 2):
        plan = build_plan(graph, digits.preprocessing, n, heuristic(Facts(132)))
        for step in plan.steps:
            assert compile_kernel(step.launch.instantiation, "90a", tmp_path).code


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_plans_for_every_listed_gpu_take_kernels_that_its_architecture_has(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Instantiation] = []

    def keep(wanted: Iterable[Instantiation], *_: object) -> list[Instantiation]:
        chosen.extend(wanted)
        return chosen

    monkeypatch.setattr("models.tuning.precompile.compile_all", keep)
    monkeypatch.setattr("models.tuning.precompile.known_architectures", lambda: ARCHITECTURES)
    assert precompile(load_classifier(BUILT_IN_MODEL), [arch], max_batch=8) == len(chosen) > 0
    assert [each for each in chosen if not each.architectures.includes(arch)] == []


def test_an_unknown_architecture_is_refused_with_those_there_are(tmp_path: Path) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    with pytest.raises(EngineError, match=r"architecture 91; NVRTC \S+ compiles for 75, .*90a"):
        precompile(digits, ["91"], max_batch=1, cache=tmp_path)
    older = replace(digits, precision=Precision.TF32)
    with pytest.raises(
        EngineError, match=r"sm_75 has no tensor cores for tf32; GPUs have them from sm_80"
    ):
        precompile(older, ["80", "75"], max_batch=1, cache=tmp_path)
