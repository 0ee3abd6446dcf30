"""Batch sizes out of /metrics."""

from loadtest.batches import batch_sizes, ran_between
from service.batching.batcher import BatchRecord
from service.telemetry.metrics import Metrics


def ran(size: int) -> BatchRecord:
    return BatchRecord(size, compute_s=0.001, failed=False)


def test_sizes_are_read_off_what_the_service_exposes() -> None:
    metrics = Metrics(max_batch=4)
    name = 'the "other"'
    digits, other = metrics.model("digits", "1"), metrics.model(name, "1")
    for size in (1, 1, 2, 4):
        digits.batch(ran(size))
    before = metrics.exposition().decode()
    digits.batch(ran(3))
    other.batch(ran(1))
    after = metrics.exposition().decode()
    assert batch_sizes(before, "digits") == {1: 2, 2: 1, 3: 0, 4: 1}
    assert ran_between(batch_sizes(before, "digits"), batch_sizes(after, "digits")) == {3: 1}
    assert ran_between(batch_sizes(before), batch_sizes(after)) == {1: 1, 3: 1}
    assert batch_sizes(after, name) == {1: 1, 2: 0, 3: 0, 4: 0}
    assert batch_sizes(after, "nobody") is None


def test_where_there_are_no_such_metrics_there_are_no_sizes() -> None:
    assert batch_sizes(None) is None
    assert batch_sizes("<html>") is None
    assert batch_sizes("up 1\n") is None
    assert ran_between(None, {1: 2}) is None
    assert ran_between({1: 2}, None) is None
