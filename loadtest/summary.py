"""Computes percentiles, throughput and error counts from the recorded requests. Detects an
overloaded load generator."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.answers import PHASES
from loadtest.journal import REFUSED, TOO_LATE, Columns

Percentiles = Mapping[str, float | None]
"""Percentiles by name, each None if there are no values."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}

# Above this share of its core, the load generator limits the result.
_MAX_CPU = 0.9

# How late requests may be sent. The lag is part of the latency, so it matters if it is a large
# share of the latency.
_MAX_LAG_MS = 1.0
_MAX_LAG_SHARE = 0.2


@dataclass(frozen=True)
class Load:
    """Describes one load: a number of requests per second, or a number of clients."""

    rate: float | None = None  # requests per second
    clients: int | None = None

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:,.0f}/s" if self.rate >= 1000 else f"{self.rate:.4g}/s"
        return f"{self.clients} client{'' if self.clients == 1 else 's'}"


@dataclass(frozen=True)
class Summary:
    """Summarises the requests of one load that were due within an interval of time."""

    load: Load
    seconds: float  # length of the window
    requests: int  # due in the window
    answered: int  # requests with a valid answer
    throughput: float  # valid answers per second that arrived in the window
    latency_ms: Percentiles  # of the valid answers: QUANTILES and mean
    errors: Mapping[str, int]  # by status or reason
    late: int | None  # valid answers after their deadline; None without a deadline
    refused: int  # 504 because of the deadline; not errors
    phases_ms: Mapping[str, Percentiles]  # p50 and p99 of each phase in the server
    batch_sizes: Mapping[int, int] | None  # of the engine, including the warm-up
    send_lag_ms: Percentiles  # time sent minus time intended: p50, p99, max
    client_cpu: float  # cores that the load generator used
    interrupted: bool = False

    @property
    def failed(self) -> int:
        """Return how many requests got no valid answer. A request that was refused because of its
        deadline does not count."""
        return sum(self.errors.values())

    @property
    def error_share(self) -> float:
        """Return the fraction of requests that failed."""
        return self.failed / self.requests if self.requests else 0.0

    @property
    def client_limited(self) -> bool:
        """Return whether the load generator, rather than the server, limits the result."""
        return self.client_cpu > _MAX_CPU

    @property
    def sent_late(self) -> bool:
        """Return whether requests were sent so late that the measured latencies are wrong."""
        lag, latency = self.send_lag_ms["p99"], self.latency_ms["p99"]
        late = lag is not None and lag > max(_MAX_LAG_MS, _MAX_LAG_SHARE * (latency or 0.0))
        return late or TOO_LATE in self.errors

    @property
    def shown_ms(self) -> Percentiles:
        """Return `latency_ms`. Percentiles for which there are too few answers are None."""
        return {
            name: value if enough(self.answered, name) else None
            for name, value in self.latency_ms.items()
        }

    def meets(self, p99_ms: float) -> bool:
        """Return whether every request was answered and p99 is at most `p99_ms`."""
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
    """Return the summary of the requests that were due within `window`, a begin and an end in clock
    seconds.

    Throughput counts all answers that arrived within `window`, even if their requests were due
    earlier. An overloaded server answers some requests only after the window. These requests do not
    count for the throughput.
    """
    begin, end = window
    good = columns.kind == 0
    due = (columns.intended >= begin) & (columns.intended < end)
    arrived = good & (columns.done >= begin) & (columns.done < end)
    latency_ms = (columns.done - columns.intended)[due & good] * 1e3
    lag_ms = (columns.sent - columns.intended)[due & ~np.isnan(columns.sent)] * 1e3
    reported = due & good & ~np.isnan(columns.phases_ms[:, 0])
    counts = np.bincount(columns.kind[due], minlength=len(columns.kinds)).tolist()
    errors = {kind: n for kind, n in zip(columns.kinds[1:], counts[1:], strict=True) if n}
    refused = errors.pop(REFUSED, 0)
    mean_ms = float(latency_ms.mean()) if len(latency_ms) else None
    return Summary(
        load=load,
        seconds=end - begin,
        requests=int(due.sum()),
        answered=len(latency_ms),
        throughput=float(arrived.sum()) / (end - begin) if end > begin else 0.0,
        latency_ms={**percentiles(latency_ms, *QUANTILES), "mean": mean_ms},
        errors=errors,
        late=None if deadline_s is None else int((latency_ms > deadline_s * 1e3).sum()),
        refused=refused,
        phases_ms={
            name: percentiles(one, "p50", "p99")
            for name, one in zip(PHASES, columns.phases_ms[reported].T, strict=True)
            if len(one)
        },
        batch_sizes=batch_sizes,
        send_lag_ms=percentiles(lag_ms, "p50", "p99", "max"),
        client_cpu=client_cpu,
        interrupted=interrupted,
    )


def enough(n: int, name: str) -> bool:
    """Return whether there are enough values for the percentile `name`. With fewer values, the
    percentile would equal the maximum."""
    beyond = 1 - QUANTILES.get(name, 0.0)
    return name == "max" or round(n * beyond, 6) >= 1


def percentiles(values: NDArray[np.float64], *names: str) -> dict[str, float | None]:
    """Return the percentiles listed in `names`, which are keys of QUANTILES. The quantile q is the
    smallest value v such that at least the fraction q of all values is at most v."""
    if not len(values):
        return dict.fromkeys(names)
    quantiles = [QUANTILES[name] for name in names]
    found = np.quantile(values, quantiles, method="inverted_cdf").tolist()
    return dict(zip(names, found, strict=True))
