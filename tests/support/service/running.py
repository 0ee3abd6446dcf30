"""Counts the items that a batcher runs."""

from typing import Any

from service.batching.batcher import Batcher


def in_flight(batcher: Batcher[Any, Any]) -> int:
    """Return the number of items in running batches."""
    return sum(len(consumer.batch.items) for consumer in batcher._consumers if consumer.batch)
