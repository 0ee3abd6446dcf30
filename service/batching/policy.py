"""When to dispatch how many, whom to refuse: pure functions of a view of a batcher.

    View ── decide ── Decision: dispatch so many now | look again at a moment | refuse these

**Order.** Every item has a moment at which it is due, and the earliest goes first: its arrival
plus `PATIENCE_S`, or its deadline where that is sooner, plus `PATIENCE_S` for every priority below
the default. So a higher priority goes before a lower one, a near deadline before none, equals in
the order of their arrival; and nobody is overtaken by what arrives more than that much later.

**Size.** The smallest of the most efficient batches that can be filled, n / L(n) being efficiency:
never slower in throughput than taking all, and sooner done where L jumps or is a straight line.

**Moment.** At once, unless arrivals are expected (see `service/batching/traffic.py`) that pay for
waiting: the items a second with them, from what triggered them on, must exceed the items a second
without, be it this batch's or this one's and the next's together. That breaks up cohorts: with
eight steady clients in two batches of four the other four are about to come, and L(8) is less than
2 L(4). Where batches take less than `SHORT_S`, nobody is waited for.

**Deadlines.** Whoever cannot make it is refused, when that is known. A batch is no larger than the
deadlines in it allow; items in front that hold up more others than they are go unserved, as in
Nexus' early drop (Shen et al. 2019, section 6.3), but only where that lets more be in time.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from service.batching.latency import Latency
from service.batching.traffic import Prospect

# How much later arrivals may overtake, a level of priority; and how soon a request without a
# deadline is due.
PATIENCE_S = 1.0

DEFAULT_PRIORITY = 2  # 1 is the highest; what is not said, or said as 0, is this
LOWEST_PRIORITY = 9

# How much more efficient a smaller batch must be; what a batch of at most half the size may lose of
# it, and never more than a quarter of the time that is to spare.
_CLEARLY = 1.03
_MOST_SPARED = 0.1

# What waiting must gain.
_GAIN = 1.02

# Nobody is waited for where L(1) is less: no event loop can time a part of that, and what it costs
# to decide would be more than what is gained.
SHORT_S = 0.0005

# Waiting shorter than this is no waiting.
_SOON_S = 1e-6

# One batch in so many takes all that fit, so that no size's time goes stale.
_EXPLORE = 64

# How many items ahead the deadlines are looked through, in batches.
_HORIZON = 8


class Urgency(NamedTuple):
    """How soon a request is wanted; by default no sooner than others."""

    deadline: float = inf  # clock seconds
    priority: int = 0  # 1 is the highest


NO_HURRY = Urgency()


class Claim(NamedTuple):
    """One request's part of what waits."""

    items: int
    deadline: float  # clock seconds; inf where there is none


class View(NamedTuple):
    """A batcher at a moment; times are seconds of its clock."""

    now: float
    depth: int  # items that wait
    latency: Latency
    busy_until: float | None = None  # when the running batch should be done; None while none runs
    idle: float = 0.0  # share of the time in which nothing ran lately
    batches: int = 1  # dispatched so far
    prospects: Sequence[Prospect] = ()
    claims: Sequence[Claim] = ()  # all that waits, in order; empty where nobody has a deadline


class Decision(NamedTuple):
    """What to do now; `refused` are places in `View.claims`."""

    dispatch: int = 0  # items, from the front of what is not refused
    look_again: float = inf
    refused: tuple[int, ...] = ()
    enough: int = 0  # items that end the wait before `look_again`


def urgency_of(started: float, timeout_s: float | None, priority: int) -> Urgency:
    """What a request that began to arrive then asks for; None, 0: nothing."""
    if timeout_s is None and not priority:
        return NO_HURRY
    return Urgency(inf if timeout_s is None else started + timeout_s, priority)


def due(now: float, urgency: Urgency = NO_HURRY) -> float:
    """The moment that an arrival is due; the earliest goes first."""
    if urgency is NO_HURRY:
        return now + PATIENCE_S  # as most are
    deadline, priority = urgency
    level = min(priority or DEFAULT_PRIORITY, LOWEST_PRIORITY) - DEFAULT_PRIORITY
    return min(deadline, now + PATIENCE_S) + level * PATIENCE_S


def completion(view: View, ahead: int, items: int) -> float:
    """When `items` that arrive now would be done, `ahead` items going before them."""
    return _free(view) + view.latency.of(ahead + items)


def decide(view: View) -> Decision:
    """What to do with what waits."""
    if view.claims:
        return _by_deadlines(view)
    if view.busy_until is not None or not view.depth:
        return Decision()
    size = _size(view, view.depth)
    moment, enough = _pause(view, view.depth, size)
    return Decision(look_again=moment, enough=enough) if moment else Decision(size)


def _free(view: View) -> float:
    """When the next batch may begin."""
    return view.now if view.busy_until is None else max(view.now, view.busy_until)


def _size(view: View, most: int) -> int:
    """How many of `most` items make the best batch."""
    seconds = view.latency.seconds
    most = min(most, len(seconds))
    if most == 1 or not view.latency.known or view.batches % _EXPLORE == 0:
        return most
    efficiency = [n / seconds[n - 1] for n in range(1, most + 1)]
    best = max(efficiency)
    if best > efficiency[-1] * _CLEARLY:
        most = efficiency.index(best) + 1
    # Sooner done where there is time to spare.
    spared = min(_MOST_SPARED, view.idle / 4) if view.depth < len(seconds) else 0.0
    least = best * (1 - spared)
    small = next(n for n in range(1, most + 1) if efficiency[n - 1] >= least)
    return small if small <= most // 2 else most


def _pause(view: View, depth: int, size: int) -> tuple[float | None, int]:
    """The moment until which waiting pays, if any does, and how many should wait then."""
    latency = view.latency
    most = latency.max_batch
    best, moment, enough = _GAIN, None, 0
    if depth >= most or latency.seconds[0] < SHORT_S:
        return moment, enough
    for since, more, by in view.prospects:
        passed = view.now - since
        without = size / (passed + latency.of(size))
        following = min(most, round(more))
        if following > 0:
            both = (size + following) / (latency.of(size) + latency.of(following))
            without = max(without, both)
        for until, items in by:
            filled = min(most, depth + round(items))
            if filled > depth and until > view.now + _SOON_S:
                gain = filled / (until - since + latency.of(filled)) / without
                if gain > best:
                    best, moment, enough = gain, until, filled
    return moment, enough


def _by_deadlines(view: View) -> Decision:
    """`decide` where somebody has a deadline."""
    free, latency = _free(view), view.latency
    busy = view.busy_until is not None
    last_chance = [claim.deadline - latency.of(claim.items) for claim in view.claims]
    too_late = [moment < free or (busy and moment <= view.now) for moment in last_chance]
    refused = tuple(place for place, late in enumerate(too_late) if late)
    left = [place for place, late in enumerate(too_late) if not late]
    if busy or not left:
        # Who can make it if all goes well can still be let down by a batch that takes longer.
        return Decision(0, min((last_chance[place] for place in left), default=inf), refused)
    skipped, size = _sacrifice(view, [view.claims[place] for place in left])
    if not skipped:
        depth = sum(view.claims[place].items for place in left)
        moment, enough = _pause(view, depth, size)
        full = latency.within(latency.max_batch)
        if moment and moment + full <= min(view.claims[place].deadline for place in left):
            return Decision(0, moment, refused, enough)
    return Decision(size, inf, tuple(sorted((*refused, *left[:skipped]))))


def _sacrifice(view: View, claims: Sequence[Claim]) -> tuple[int, int]:
    """How many claims in front to give up, and the size of the batch then.

    Of all choices the one with which the most items make it, and of those the first.
    """
    latency = view.latency
    horizon = _HORIZON * latency.max_batch
    best, choice = -1, (0, 0)
    for skipped in range(len(claims)):
        if skipped and claims[skipped - 1].deadline >= view.now + latency.within(latency.max_batch):
            break  # it holds nobody up
        deadlines: list[float] = []
        for claim in claims[skipped:]:
            deadlines += [claim.deadline] * min(claim.items, horizon)
            if len(deadlines) >= horizon:
                break
        size = _size(view, max(1, _fitting(latency, deadlines, 0, view.now)))
        made = size + _made(latency, deadlines, size, view.now + latency.within(size))
        if made > best:
            best, choice = made, (skipped, size)
    return choice


def _fitting(latency: Latency, deadlines: Sequence[float], first: int, start: float) -> int:
    """How many items from `first` on can run together from `start` on, all in time."""
    earliest = inf
    for n, deadline in enumerate(deadlines[first : first + latency.max_batch], 1):
        earliest = min(earliest, deadline)
        if start + latency.within(n) > earliest:
            return n - 1
    return min(latency.max_batch, len(deadlines) - first)


def _made(latency: Latency, deadlines: Sequence[float], first: int, start: float) -> int:
    """How many items from `first` on are in time, each batch as large as it can be."""
    made = 0
    while first < len(deadlines):
        size = _fitting(latency, deadlines, first, start)
        if size:
            made += size
            start += latency.within(size)
        first += size or 1
    return made
