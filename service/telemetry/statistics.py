"""What one model has done since it was loaded, counted as Triton's statistics extension counts it.

    Triton   compute_input   queue   compute_infer   compute_output
    here     decode          queue   compute         respond

A request's time begins when its body is there, as it does in Triton: the phase before that,
`receive`, is not counted here.

`service/telemetry/counts.py` counts; /v2/models/stats and the metrics with Triton's names tell.
"""

from dataclasses import dataclass
from typing import NamedTuple

# As nginx counts a request whose client did not wait for the answer.
CLIENT_CLOSED_REQUEST = 499

# Why requests fail, in Triton's words.
REASONS = REJECTED, CANCELED, BACKEND, OTHER = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
_REASONS = {429: REJECTED, 499: CANCELED, 500: BACKEND, 503: REJECTED, 504: REJECTED}


class Phases(NamedTuple):
    """Where a request's time went, in whole microseconds; they add up to the whole, `total`."""

    total: int
    receive: int  # reading the body
    decode: int  # from bytes to pixels, waiting for a thread included
    queue: int  # until the batch of its last image started
    compute: int  # that batch
    respond: int  # handing over, ranking, and whatever else there was

    @classmethod
    def of(
        cls, total: float, receive: float, decode: float, queue: float, compute: float
    ) -> "Phases":
        """Of seconds: what is left of the `total` is `respond`."""
        received = int(receive * 1e6 + 0.5)
        decoded = int(decode * 1e6 + 0.5)
        queued = int(queue * 1e6 + 0.5)
        computed = int(compute * 1e6 + 0.5)
        parts = received + decoded + queued + computed
        whole = max(int(total * 1e6 + 0.5), parts)
        return cls(whole, received, decoded, queued, computed, whole - parts)


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
