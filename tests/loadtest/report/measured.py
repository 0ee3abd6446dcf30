"""A measured load, for the tests."""

from loadtest.report.record import Run
from loadtest.subject import Subject
from loadtest.summary import Load, Summary
from loadtest.sweep import SweepResult

GOOD = Summary(
    load=Load(rate=50),
    seconds=10,
    requests=500,
    answered=500,
    throughput=50.0,
    latency_ms={"p50": 1.0, "p90": 2.0, "p99": 3.0, "p99.9": 123.4, "max": 1234.5, "mean": 1.5},
    errors={},
    late=None,
    refused=0,
    phases_ms={"decode": {"p50": 0.25, "p99": 0.75}},
    batch_sizes={1: 2, 4: 2},
    send_lag_ms={"p50": 0.1, "p99": 0.2, "max": 0.3},
    client_cpu=0.2,
)
NO_LATENCY = dict.fromkeys(GOOD.latency_ms)
SUBJECT = Subject("digits", "cpu (ONNX Runtime 1.23)", "EPYC, 2 cores")


def run(name: str, *steps: Summary, subject: Subject = SUBJECT) -> Run:
    """Return a run of these loads."""
    return Run(name, subject, SweepResult(list(steps)))
