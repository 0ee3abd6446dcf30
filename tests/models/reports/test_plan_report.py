"""What `convoy inspect --plan` shows of a plan."""

from dataclasses import replace

import pytest

from kernels.device.gpus import GPUS, H200
from kernels.problems.precision import Precision
from models import BUILT_IN_MODEL, EngineError, load_classifier
from models.reports.plan_report import plan_report
from models.schedule.time import GAP_US, OVERLAPPED_GAP_US


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


def test_launches_are_shown_one_after_another_or_side_by_side_with_their_gaps() -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    for gpu in ("a100", "h200"):
        plan = plan_report(digits, 1, GPUS[gpu])
        gap_us = OVERLAPPED_GAP_US if GPUS[gpu].overlaps else GAP_US
        for step in plan.steps[1:]:
            ready_us = max(plan.steps[other].end_us for other in step.after)
            assert step.start_us - ready_us == pytest.approx(gap_us) or len(step.after) != 1
            assert step.start_us >= ready_us + gap_us - 1e-9
        assert plan.timeline.us == plan.steps[-1].end_us
        assert 0 < plan.timeline.gaps_us < (len(plan.steps) - 1) * GAP_US
