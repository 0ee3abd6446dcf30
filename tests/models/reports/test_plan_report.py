"""What `convoy inspect --plan` shows of a plan."""

import pytest

from models import BUILT_IN_MODEL, load_classifier
from models.reports.plan_report import GPUS, plan_report


def test_a_plans_report_adds_up_and_says_what_bounds_each_launch() -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    one, eight = (plan_report(digits, n, GPUS["h200"]) for n in (1, 8))
    assert len(one.steps) == 11
    assert sum(s.flops for s in eight.steps) == 8 * sum(s.flops for s in one.steps)
    assert one.roofline_us == pytest.approx(sum(step.roofline_us for step in one.steps))
    for step in one.steps:
        arithmetic, memory = step.flops / 66.9e6, step.bytes / 4.8e6
        assert step.roofline_us == pytest.approx(max(arithmetic, memory))
        assert step.bound == ("FLOPs" if arithmetic > memory else "bytes")
