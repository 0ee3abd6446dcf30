"""What one model has done since it was loaded, counted as Triton's statistics extension counts it.

    Triton   compute_input   queue   compute_infer   compute_output
    here     decode          queue   compute         respond

A request's time begins when its body is there, as it does in Triton: the phase before that,
`receive`, is not counted here.

Plain integers, changed on the event loop only; /v2/models/stats and the metrics with Triton's names
read them.
"""

import time
from dataclasses import dataclass, field

# Why requests fail, in Triton's words.
REJECTED, CANCELED, BACKEND, OTHER = "REJECTED", "CANCELED", "BACKEND", "OTHER"
_REASONS = {429: REJECTED, 499: CANCELED, 500: BACKEND, 503: REJECTED, 504: REJECTED}


@dataclass(slots=True)
class Phases:
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
        respond = max(0.0, total - (receive + decode + queue + compute))
        return cls(receive, decode, queue, compute, respond)

    @property
    def total(self) -> float:
        """All of it."""
        return self.receive + self.decode + self.queue + self.compute + self.respond


@dataclass(slots=True)
class Duration:
    """How often something happened, and how long all of it took together."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.count += 1
        self.ns += int(seconds * 1e9 + 0.5)


@dataclass(slots=True)
class Statistics:
    """One model's counts. Requests may carry several images; a batch may carry several requests."""

    inferences: int = 0  # images answered
    success: Duration = field(default_factory=Duration)  # requests, without receiving them
    fail: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: dict[int, Duration] = field(default_factory=dict)  # that succeeded, by their size
    failures: dict[str, int] = field(default_factory=dict)  # failed requests by reason
    last_inference: int = 0  # milliseconds since 1970

    @property
    def executions(self) -> int:
        """Batches that succeeded."""
        # A copy: metrics are told in a thread of their own, while batches go on.
        return sum(batch.count for batch in list(self.batches.values()))

    def answered(self, images: int, phases: Phases) -> None:
        """Count a request that was answered."""
        self.inferences += images
        self.success.add(phases.total - phases.receive)
        self.compute_input.add(phases.decode)
        self.queue.add(phases.queue)
        self.compute_infer.add(phases.compute)
        self.compute_output.add(phases.respond)
        self.last_inference = time.time_ns() // 1_000_000

    def refused(self, status: int, seconds: float) -> None:
        """Count a request that was refused or failed with an HTTP status."""
        self.fail.add(seconds)
        reason = _REASONS.get(status, OTHER)
        self.failures[reason] = self.failures.get(reason, 0) + 1

    def batch(self, size: int, seconds: float) -> None:
        """Count a batch that succeeded."""
        self.batches.setdefault(size, Duration()).add(seconds)
