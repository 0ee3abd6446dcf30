"""What one model has done since it was loaded, counted as Triton's statistics extension counts it.

    Triton   compute_input   queue   compute_infer   compute_output
    here     decode          queue   compute         respond

A request's time begins when its body is there, as it does in Triton: the phase before that,
`receive`, is not counted here.

`service/counts.py` counts; /v2/models/stats and the metrics with Triton's names tell.
"""

from dataclasses import dataclass
from typing import NamedTuple

# Why requests fail, in Triton's words.
REASONS = REJECTED, CANCELED, BACKEND, OTHER = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
_REASONS = {429: REJECTED, 499: CANCELED, 500: BACKEND, 503: REJECTED, 504: REJECTED}


class Phases(NamedTuple):
    """Where a request's time went, in seconds; they add up to the whole, `total`."""

    receive: float  # reading the body
    decode: float  # from bytes to pixels, waiting for a thread included
    queue: float  # until the batch of its last image started
    compute: float  # that batch
    respond: float  # handing over, ranking, and whatever else there was

    @classmethod
    def of(
        cls, total: float, receive: float, decode: float, queue: float, compute: float
    ) -> "Phases":
        """The phases of a request that took `total`; `respond` is what is left of it."""
        left = total - (receive + decode + queue + compute)
        return cls(receive, decode, queue, compute, left if left > 0 else 0.0)

    @property
    def total(self) -> float:
        """All of it."""
        return self.receive + self.decode + self.queue + self.compute + self.respond


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and how long all of it took together."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """One model's counts. Requests may carry several images; a batch may carry several requests."""

    inferences: int  # images answered
    success: Duration  # requests, without receiving them
    fail: Duration
    compute_input: Duration
    queue: Duration
    compute_infer: Duration
    compute_output: Duration
    batches: dict[int, Duration]  # that succeeded, by their size
    failures: dict[str, int]  # failed requests by reason
    last_inference: int  # milliseconds since 1970; 0: never

    @property
    def executions(self) -> int:
        """Batches that succeeded."""
        return sum(batch.count for batch in self.batches.values())


def reason_of(status: int) -> str:
    """Why a request failed that was answered with an HTTP status."""
    return _REASONS.get(status, OTHER)
