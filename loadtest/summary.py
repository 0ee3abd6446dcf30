"""A journal in numbers: percentiles, throughput, errors, and whether the client was the limit."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.answers import PHASES
from loadtest.journal import REFUSED, TOO_LATE, Columns

# Each in thousandths.
PERCENTILES = {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999}

# Beyond these it is the client that is measured: of its core, and of how late it sends. Lateness is
# part of the latency, so it matters where it is a good part of it.
_BUSY = 0.9
_LATE_MS = 1.0
_LATE_SHARE = 0.2


@dataclass(frozen=True)
class Load:
    """What is put on a server: a rate of independent requests, or a number of clients."""

    rate: float | None = None  # requests a second
    clients: int | None = None

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:,.4g}/s"
        return f"{self.clients} client{'' if self.clients == 1 else 's'}"


@dataclass(frozen=True)
class Summary:
    """One load for one window of time; milliseconds are None where there was no good answer."""

    load: Load
    seconds: float  # length of the window
    requests: int  # that were to be sent in it
    answered: int  # of them, with a good answer
    throughput: float  # good answers a second that arrived in the window
    latency_ms: dict[str, float | None]  # of the good answers: p50 ... p99.9, mean, max
    errors: dict[str, int]  # by status or reason
    late: int | None  # good answers after their deadline; None where there is none
    refused: int  # because they could not be answered by their deadline; no errors
    phases_ms: dict[str, dict[str, float | None]]  # the server's own account: p50 and p99 a phase
    batch_sizes: dict[int, int] | None  # batches that the engine ran, warm-up included
    send_lag_ms: dict[str, float | None]  # how much later than intended it sent: p50, p99, max
    client_cpu: float  # cores that the load generator used
    interrupted: bool = False

    @property
    def failed(self) -> int:
        """Requests without a good answer, other than those refused by their deadline."""
        return sum(self.errors.values())

    @property
    def error_share(self) -> float:
        """Of the requests."""
        return self.failed / self.requests if self.requests else 0.0

    @property
    def client_limited(self) -> bool:
        """Whether the load generator, not the server, made the latency what it is."""
        lag, latency = self.send_lag_ms["p99"], self.latency_ms["p99"]
        late = lag is not None and lag > max(_LATE_MS, _LATE_SHARE * (latency or 0.0))
        return self.client_cpu > _BUSY or late or TOO_LATE in self.errors

    def meets(self, p99_ms: float) -> bool:
        """Whether every request was answered, and 99 of 100 within the bound."""
        p99 = self.latency_ms["p99"]
        return self.failed == self.refused == 0 and p99 is not None and p99 <= p99_ms


def summarise(
    load: Load,
    columns: Columns,
    window: tuple[float, float],
    *,
    client_cpu: float,
    deadline_s: float | None = None,
    batch_sizes: Mapping[int, int] | None = None,
    interrupted: bool = False,
) -> Summary:
    """What happened to the requests that were to be sent in `window`, clock seconds.

    Throughput counts the answers that arrived in it, whenever they were asked for: beyond what a
    server can do the others only lengthen its queue.
    """
    begin, end = window
    good = columns.kind == 0
    inside = (columns.intended >= begin) & (columns.intended < end)
    arrived = good & (columns.done >= begin) & (columns.done < end)
    latency_ms = (columns.done - columns.intended)[inside & good] * 1e3
    lag_ms = (columns.sent - columns.intended)[inside & ~np.isnan(columns.sent)] * 1e3
    phases_ms = columns.phases_ms[inside & good]
    phases_ms = phases_ms[~np.isnan(phases_ms[:, 0])]
    counts = np.bincount(columns.kind[inside], minlength=len(columns.kinds))[1:]
    errors = {kind: int(n) for kind, n in zip(columns.kinds[1:], counts, strict=True) if n}
    refused = errors.pop(REFUSED, 0)
    return Summary(
        load=load,
        seconds=end - begin,
        requests=int(inside.sum()),
        answered=len(latency_ms),
        throughput=float(arrived.sum()) / (end - begin) if end > begin else 0.0,
        latency_ms={
            **{name: percentile(latency_ms, q) for name, q in PERCENTILES.items()},
            "mean": float(latency_ms.mean()) if len(latency_ms) else None,
            "max": percentile(latency_ms, 1000),
        },
        errors=errors,
        late=None if deadline_s is None else int((latency_ms > deadline_s * 1e3).sum()),
        refused=refused,
        phases_ms={
            name: {"p50": percentile(one, 500), "p99": percentile(one, 990)}
            for name, one in zip(PHASES, phases_ms.T, strict=True)
            if len(one)
        },
        batch_sizes=None if batch_sizes is None else dict(batch_sizes),
        send_lag_ms={
            "p50": percentile(lag_ms, 500),
            "p99": percentile(lag_ms, 990),
            "max": percentile(lag_ms, 1000),
        },
        client_cpu=client_cpu,
        interrupted=interrupted,
    )


def percentile(values: NDArray[np.floating], thousandths: int) -> float | None:
    """The least value that at least so many thousandths of all do not exceed: one that occurred.

    In whole numbers: the float 0.999 times 1000 is more than 999, and numpy takes the 1000th then.
    """
    if not len(values):
        return None
    rank = -(-thousandths * len(values) // 1000)
    return float(np.partition(values, rank - 1)[rank - 1])
