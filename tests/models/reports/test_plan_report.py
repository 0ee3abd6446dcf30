"""The description of a plan in `convoy inspect --plan`."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.networks.light import classifier
from benchmarks.networks.vit import Vit, vit
from kernels.convolution.algorithms import candidates, choices
from kernels.device.gpus import GPUS, H200
from kernels.problems.precision import Precision
from kernels.tuning.constants import ASSUMED, microseconds
from kernels.tuning.search import keys
from kernels.tuning.store import Conditions, Outcome, Times, TuningStore
from kernels.tuning.timing import Timing
from models import BUILT_IN_MODEL, EngineError, load_classifier
from models.reports.plan_report import plan_report
from models.schedule.time import GAP_US
from models.tuning.measured import conv_problems


def test_a_plans_report_adds_up_and_says_what_bounds_each_launch() -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    one, eight = (plan_report(digits, n, GPUS["h200"]) for n in (1, 8))
    assert len(one.steps) == 12
    assert sum(s.flops for s in eight.steps) == 8 * sum(s.flops for s in one.steps)
    assert one.roofline_us == pytest.approx(sum(step.roofline_us for step in one.steps))
    for step in one.steps:
        arithmetic, memory = step.flops / (H200.peak_flops / 1e6), step.bytes / 4.8e6
        assert step.roofline_us == pytest.approx(max(arithmetic, memory))
        assert step.bound == ("FLOPs" if arithmetic > memory else "bytes")


def test_launches_have_the_profile_of_their_kernel_where_it_was_counted() -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    on_h200, on_l4 = (plan_report(digits, 8, GPUS[name]).steps for name in ("h200", "l4"))
    codes = [step.code for step in on_h200 if step.kernel.startswith("conv_")]
    assert codes
    for code in codes:
        assert code is not None
        assert 0 < code.registers <= 255
        assert code.blocks > 0
        assert 0.1 < (code.products or 0) < 1
        assert 0.1 < (code.issue_ceiling or 0) < 1
    assert all(step.code is None for step in on_l4)  # no table is for sm_89


def test_convolutions_on_tensor_cores_have_their_peak() -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    for precision, tflops in ((Precision.FP16, 989), (Precision.TF32X3, 494 / 3)):
        plan = plan_report(replace(digits, precision=precision), 8, GPUS["h200"])
        convs = [step for step in plan.steps if "conv_tensor" in step.kernel]
        assert convs
        for step in plan.steps:
            assert step.precision == (precision.value if step in convs else "fp32")
            peak = tflops if step in convs else H200.tflops(Precision.FP32)
            slower = max(step.flops / peak / 1e6, step.bytes / 4.8e6)
            assert step.roofline_us == pytest.approx(slower)
    turing = replace(digits, precision=Precision.TF32)
    with pytest.raises(EngineError, match="T4 has no tensor cores for tf32"):
        plan_report(turing, 1, GPUS["t4"])


_BY_THE_MODEL = r"([0-9.]+) us by the cost model; (.*) takes ([0-9.]+) us"


def test_every_algorithm_that_a_convolution_does_not_run_has_its_reason() -> None:
    digits = replace(load_classifier(BUILT_IN_MODEL), precision=Precision.FP16)
    problems = {
        name: problem
        for problem, names in conv_problems(digits.rewritten.graph, [8]).items()
        for name in names
    }
    on_h200, on_a100 = (plan_report(digits, 8, GPUS[name]) for name in ("h200", "a100"))
    for plan in (on_h200, on_a100):
        chosen = {step.name: step.chosen for step in plan.steps if step.chosen}
        assert chosen.keys() == problems.keys()
        for name, problem in problems.items():
            reasons = {each.algorithm: each.reason for each in plan.losers if each.node == name}
            (ran,) = {each.name for each in candidates(problem)} - reasons.keys()
            assert reasons.keys() == {each.name for each in candidates(problem)} - {ran}
            assert chosen[name].startswith(ran)
            for reason in reasons.values():
                if found := re.match(
                    r"([0-9.]+) us by the cost model; (.*) takes ([0-9.]+) us", reason
                ):
                    assert found[2] == chosen[name]
                    slower = float(found[1]) >= float(found[3])
                    assert (
                        slower
                        or ", in fewer launches" in reason
                        or ", about the same time, and fills the GPU" in reason
                    )
                else:
                    assert reason == "no kernel for the A100 SXM 80 GB"
    of_hopper = ("tensor wgmma", "tensor tma")
    by_wgmma = {each.reason for each in on_a100.losers if each.algorithm in of_hopper}
    assert by_wgmma == {"no kernel for the A100 SXM 80 GB"}
    assert all("us by the cost model" in each.reason for each in on_h200.losers)


def test_to_what_was_measured_other_algorithms_lost(tmp_path: Path) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    problem, (name, *_) = next(iter(conv_problems(digits.rewritten.graph, [1]).items()))
    winner = str(choices(problem, architecture="90a")[-1])
    one = Timing(1.0, 1.0, 1.0)
    here = keys(Conditions("NVIDIA H200", "90a", "CUDA 13.0", "NVRTC 13.0"))
    TuningStore(tmp_path / "t").add(here(problem), {winner: Outcome(1.0, Times(one, one))})
    plan = plan_report(digits, 1, GPUS["h200"], tmp_path / "t")
    reasons = [each.reason for each in plan.losers if each.node == name]
    assert len(reasons) == len(candidates(problem)) - 1
    assert set(reasons) == {f"{winner} was measured to be the fastest"}


def test_launches_are_shown_one_after_another_or_side_by_side_with_their_gaps() -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    for gpu in ("a100", "h200"):
        plan = plan_report(digits, 1, GPUS[gpu])
        gap_us = microseconds(ASSUMED.overlapped_cycles) if GPUS[gpu].overlaps else GAP_US
        for step in plan.steps[1:]:
            ready_us = max(plan.steps[other].end_us for other in step.after)
            assert step.start_us - ready_us == pytest.approx(gap_us) or len(step.after) != 1
            assert step.start_us >= ready_us + gap_us - 1e-9
        assert plan.timeline.us == plan.steps[-1].end_us
        assert 0 < plan.timeline.gaps_us < (len(plan.steps) - 1) * GAP_US


def test_attention_has_the_peak_of_its_precision() -> None:
    small = classifier("ViT", vit(Vit(32, 8, 24, 2, 3, 48, 7)))
    for precision, tflops in ((Precision.FP16, 989), (Precision.TF32, 494)):
        plan = plan_report(replace(small, precision=precision), 8, H200)
        found = [step for step in plan.steps if step.kernel.startswith("attention_tensor")]
        assert len(found) == 2
        for step in found:
            assert step.precision == precision.value
            assert step.roofline_us == pytest.approx(
                max(step.flops / tflops / 1e6, step.bytes / 4.8e6)
            )
    (step, _) = (each for each in plan_report(small, 8, H200).steps if "attention" in each.kernel)
    assert step.precision == "fp32"
