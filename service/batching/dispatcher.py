"""Applies the batching policy to recent arrivals and batches.

The batcher reports events to the dispatcher and asks it for decisions. The simulator in
`benchmarks/simulation` does the same, with a simulated clock.
"""

from collections.abc import Iterable, Sequence
from math import inf

from service.batching.latency import Latency
from service.batching.policy import (
    ALONE,
    SHORT_S,
    Claim,
    Decision,
    Slot,
    View,
    completion,
    decide,
    seconds_of,
    share,
)
from service.batching.rivalry import Rivalry
from service.batching.traffic import Traffic

# Only every fourth batch is recorded if batches are short, or if a single item takes as long as
# expected.
_SAMPLE = 4

# The factor by which the shortest recent time grows with each batch, so that it is forgotten.
_FORGET = 1.02

_NOTHING = Decision()
_ONE = Decision(dispatch=1)


class _Engine:
    """Holds the dispatcher's data about one engine: its batch times, and its running batch."""

    __slots__ = ("held", "items", "latency", "least", "pause", "serves", "short", "started")

    def __init__(self, latency: Latency) -> None:
        self.latency = latency
        self.items = 0  # in the running batch
        self.started = 0.0
        self.least = inf  # seconds of the shortest recent batch
        self.pause = _NOTHING  # the decision to wait, while it holds
        self.held: float | None = None  # when another model's batch should end; None: none runs
        self.serves = True
        self.short = False

    @property
    def ends(self) -> float | None:
        """Return when the running batch, of this or another model, is expected to end, or None if
        no batch runs."""
        return self.started + self.latency.of(self.items) if self.items else self.held

    def free(self, now: float) -> float:
        """Return when the engine is expected to be free. If its batch is t seconds late, the batch
        is expected to end in t seconds from now."""
        ends = self.ends
        return now if ends is None else max(ends, 2 * now - ends)

    def learn(self, latency: Latency, short_s: float) -> bool:
        """Replace the table L(n), the time of a batch of n items. Return whether this changes the
        property `short`.

        An engine's batches are short if a batch of one item, or the shortest recent batch, takes
        less than `short_s` seconds. The shortest recent batch counts because a busy event loop
        lengthens the others.
        """
        before, self.latency = self.short, latency
        self.short = latency.known and min(latency.seconds[0], self.least) < short_s
        return self.short is not before


class Dispatcher:
    """Decides which batch each engine of one queue runs next. Engines are numbered from 0. Times
    are seconds of the caller's clock."""

    __slots__ = ("_batches", "_counted", "_engines", "_rivalry", "_traffic", "short", "short_s")

    def __init__(self, *latencies: Latency) -> None:
        """`latencies` has each engine's table of batch times."""
        self._engines = [_Engine(latency) for latency in latencies]
        self._traffic = Traffic(len(latencies))
        self._rivalry = Rivalry()
        self._batches = 0  # dispatched
        self.short_s = SHORT_S  # batches are short if L(1) is below this, see `policy.py`
        # Whether batches are so short that waiting for more items never pays: then traffic need not
        # be tracked.
        self.short = False
        self._count()
        for number, latency in enumerate(latencies):
            self.learn(latency, number)

    @property
    def spare(self) -> int:
        """Return how many items with deadlines may wait in addition to the items that can be done
        in time.

        The number is a full batch, so that the policy can choose the items to serve. It is 0 if
        batches are short, because the policy cannot choose well without data about arrivals.
        """
        return 0 if self.short else self._engines[0].latency.max_batch

    def latency(self, engine: int = 0) -> Latency:
        """Return an engine's current table of the time that a batch takes, by batch size."""
        return self._engines[engine].latency

    def learn(self, latency: Latency, engine: int = 0) -> None:
        """Replace an engine's table of batch times."""
        if self._engines[engine].learn(latency, self.short_s):
            # All engines run the same model, so batches are short if they are short on any engine.
            short = any(state.short for state in self._engines)
            if short and not self.short:
                self._traffic = Traffic(len(self._engines))  # not updated from now on
            self.short = short

    def add(self, latency: Latency) -> None:
        """Add an engine, before any item arrives."""
        self._engines.append(_Engine(latency))
        self._count()
        self._traffic = Traffic(len(self._engines))
        self.learn(latency, len(self._engines) - 1)

    def share(self, inside: int, engine: int) -> int:
        """Return the largest size that this engine's next batch may have while batches are short.
        `inside` is the number of items that wait or that this engine runs."""
        state = self._engines[engine]
        running = [other.items for _, other in self._counted if other is not state]
        return min(state.latency.max_batch, share(inside + sum(running), 1 + len(running)))

    def serve(self, engine: int, *, serves: bool) -> None:
        """Record whether an engine takes batches. It takes none while it restarts."""
        self._engines[engine].serves = serves
        self._count()

    def hold(self, engine: int, until: float | None) -> None:
        """Record when another model's batch on the engine's device is expected to end. None means
        that no other model uses the device."""
        self._engines[engine].held = until

    def arrived(self, now: float, items: int, client: str = "", inside: int = 0) -> None:
        """Record that items of a client arrived. `inside` is the number of the client's items that
        now wait or run."""
        if not self.short:
            self._traffic.arrived(now, items, self._engines[0].latency.seconds[0])
            self._rivalry.asked(now, client, inside)

    def dispatched(
        self, now: float, items: int, engine: int = 0, clients: Iterable[str] = ()
    ) -> None:
        """Record that a batch began, with items of these clients."""
        state = self._engines[engine]
        state.items, state.started = items, now
        self._batches += 1
        if not self.short:
            self._traffic.dispatched(now, engine)
            self._rivalry.served(now, clients)

    def answered(self, now: float, depth: int, engine: int = 0, *, failed: bool = False) -> None:
        """Record that the engine's batch ended, and that `depth` items wait. The time of a failed
        batch is not added to L(n)."""
        state = self._engines[engine]
        items, took_s = state.items, now - state.started
        state.items = 0
        if failed:
            self._traffic.failed(now, engine)
            return
        state.least = min(took_s, state.least * _FORGET)
        sampled = self._batches % _SAMPLE == 0
        if self.short:
            if sampled:
                self.learn(state.latency.observed(items, took_s), engine)
            return
        # Recording takes microseconds, so skip single items that took as long as expected.
        usual = items == 1 and not depth and abs(took_s - state.latency.of(1)) < 0.1 * took_s
        if sampled or not usual:
            self.learn(state.latency.observed(items, took_s), engine)
        shortest_s = state.latency.seconds[0]
        self._traffic.answered(now, items, took_s, shortest_s, alone=not depth, engine=engine)

    def ends(self, engine: int = 0) -> float:
        """Return when the engine's batch is expected to end, or 0 if none runs."""
        return self._engines[engine].ends or 0.0

    def first_free(self, now: float) -> int:
        """Return the engine that is expected to be free first."""
        if len(self._engines) == 1:
            return 0
        _, engine = min((engine.free(now), number) for number, engine in self._counted)
        return engine

    def decide(
        self, now: float, depth: int, claims: Sequence[Claim] = (), engine: int = 0
    ) -> Decision:
        """Return how many items `engine` should run now, or when to decide again. `engine` must be
        the engine that is free first. `depth` is the number of waiting items.

        `claims` is empty if no item has a deadline.
        """
        state = self._engines[engine]
        if not claims:
            if not depth or state.items or state.held is not None:
                return _NOTHING
            if self.short:
                if len(self._engines) == 1:
                    return Decision(min(depth, state.latency.max_batch))
                return Decision(min(depth, self.share(depth, engine)))
            if depth == 1 and not self._traffic.expecting(engine):
                return _ONE
            if depth < state.pause.enough and now < state.pause.look_again:
                return state.pause
        decision = decide(self._view(now, depth, claims, engine))
        state.pause = _NOTHING if claims else decision
        return decision

    def completion(self, now: float, ahead: int, items: int) -> float:
        """Return the time at which all new items would be done. There are `items` new ones, and
        `ahead` items are served first."""
        return completion(self._view(now, ahead, (), self.first_free(now)), ahead, items)

    def wait_s(self, now: float, depth: int) -> float:
        """Return the estimated seconds until running batches and `depth` waiting items are done.

        If a batch is late and has run for t seconds, it is assumed to run for t seconds more. Each
        later batch on the same engine is assumed to take at least t seconds.
        """
        slots = []
        for _, engine in self._counted:
            ends, passed, latency = engine.ends, now - engine.started, engine.latency
            if engine.items and ends is not None and ends < now:
                ends = now + passed
                latency = Latency(tuple(max(second, passed) for second in latency.seconds))
            slots.append(Slot(now if ends is None else max(now, ends), latency))
        slots.sort()
        return max(slots[0].free + seconds_of(slots, depth), slots[-1].free) - now

    def _count(self) -> None:
        """Update the list of engines that take batches. If none does at the moment, list all
        engines."""
        every = [*enumerate(self._engines)]
        self._counted = [(n, engine) for n, engine in every if engine.serves] or every

    def _view(self, now: float, depth: int, claims: Sequence[Claim], engine: int) -> View:
        traffic, state = self._traffic, self._engines[engine]
        others: tuple[Slot, ...] = ()
        ends = state.ends
        if len(self._engines) > 1:
            ends = None if ends is None else state.free(now)  # compared with the others'
            others = tuple(
                Slot(other.free(now), other.latency)
                for _, other in self._counted
                if other is not state
            )
        return View(
            now,
            depth,
            state.latency,
            ends,
            traffic.idle,
            self._batches,
            traffic.prospects(now, engine),
            claims,
            others,
            ALONE if ends is not None else self._rivalry.rivals(now, state.latency.most_rivals),
            traffic.rate,
            self.short_s,
        )
