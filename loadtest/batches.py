"""Batch sizes, from what a server's /metrics says before and after."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

_BATCH_SIZE = "convoy_batch_size"


def batch_sizes(exposition: str | None, model: str | None = None) -> dict[int, int] | None:
    """How many batches of each size ran so far, of one model or of all; None if it does not say."""
    if exposition is None:
        return None
    upto: dict[int, float] = {}
    try:
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                if sample.name != f"{_BATCH_SIZE}_bucket" or sample.labels["le"] == "+Inf":
                    continue
                if model is None or sample.labels.get("model", model) == model:
                    size = int(float(sample.labels["le"]))
                    upto[size] = upto.get(size, 0.0) + sample.value
    except (ValueError, KeyError):  # no exposition of ours
        return None
    if not upto:
        return None
    return {size: int(upto[size] - upto.get(size - 1, 0.0)) for size in sorted(upto)}


def ran_between(
    before: Mapping[int, int] | None, after: Mapping[int, int] | None
) -> dict[int, int] | None:
    """The batches that ran between two readings; None if either is missing."""
    if after is None or before is None:
        return None
    return {
        size: count - before.get(size, 0)
        for size, count in after.items()
        if count > before.get(size, 0)
    }
