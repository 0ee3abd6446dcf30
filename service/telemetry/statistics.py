"""What is counted of a request, in the terms of Triton's statistics extension.

    Triton   compute_input   queue   compute_infer   compute_output
    here     decode          queue   compute         respond

Triton's time of a request starts when its body is complete: it excludes our phase `receive`.
"""

from dataclasses import dataclass
from typing import NamedTuple

# nginx's status for a client that left before its answer.
CLIENT_CLOSED_REQUEST = 499

# Triton's reasons for failed requests, by HTTP status; any other status is OTHER.
REASONS = {429: "REJECTED", 499: "CANCELED", 500: "BACKEND", 503: "REJECTED", 504: "REJECTED"}


class Phases(NamedTuple):
    """A request's phases in whole microseconds; they add up to `total`."""

    total: int
    receive: int  # reading the body
    decode: int  # from bytes to pixels, including the wait for a thread
    queue: int  # until the batch of its last image started
    compute: int  # that batch
    respond: int  # the rest: handing over, ranking, writing the answer

    @classmethod
    def of(
        cls, total: float, receive: float, decode: float, queue: float, compute: float
    ) -> "Phases":
        """Convert from seconds; `respond` is the rest of `total`."""
        received = int(receive * 1e6 + 0.5)
        decoded = int(decode * 1e6 + 0.5)
        queued = int(queue * 1e6 + 0.5)
        computed = int(compute * 1e6 + 0.5)
        parts = received + decoded + queued + computed
        whole = max(int(total * 1e6 + 0.5), parts)
        return cls(whole, received, decoded, queued, computed, whole - parts)


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and the sum of its times."""

    count: int = 0
    ns: int = 0

    @property
    def us(self) -> int:
        """The sum in whole microseconds."""
        return self.ns // 1000
