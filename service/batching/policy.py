"""Decides how many items to dispatch and when, and which items to refuse, with pure functions of a
batcher's state.

    View ── decide ── Decision: dispatch n now | look again at a time | refuse these

L(n) is the measured latency of a batch of n items.

- **Order.** Clients take turns. The items of one client are served by their due times, the earliest
  first. An item is due at its arrival plus `PATIENCE_S`, or at its deadline if that is sooner, plus
  `PATIENCE_S` for each priority below the default. So a client's higher priorities go first, then
  near deadlines, then earlier arrivals, and an item is never overtaken by a much later one.
- **Size.** A batch contains all waiting items that fit, or fewer if that lowers the latency
  (`_size`). The items of a smaller batch are done sooner, but the engine's throughput is lower,
  which delays all waiting items. A smaller batch is chosen if the saved time, multiplied by the
  fraction of time in which the engine is idle, exceeds this delay.
- **Fairness.** A request that arrives while a batch runs waits for that batch and then for its own.
  If m clients share the engines, batches are small enough that two of them take at most m times
  L(k), where k is the fewest items that a client has in progress. So sharing multiplies that
  client's latency by at most m. However, a batch may always be large enough for 1/m of the engines'
  highest throughput. Otherwise, a client with one image per second would slow down the others too
  much.
- **Time.** A batch is dispatched at once, unless expected arrivals (`service/batching/traffic.py`)
  make waiting pay. The throughput in items per second must be higher with the arrivals than
  without, both for this batch alone and for this batch and the next together. Example: eight steady
  clients form two batches of four. While four clients wait, the other four are about to send. If
  L(8) is less than 2 L(4), the policy waits for them. If L(1) is below `SHORT_S`, the policy never
  waits. The batcher then only lets the event loop read requests that have arrived.
- **Deadlines.** An item that cannot meet its deadline is refused as soon as that is known. Batches
  are no larger than their deadlines allow. If the nearest deadline is closer than a full batch
  takes, several plans are compared (`_plan`). The best plan serves the most items in time: waiting
  items, and the arrivals expected at the recent rate. A plan may drop items at the front, like the
  early drop of Nexus (Shen et al. 2019, section 6.3). An item has less weight if its client has
  more items waiting, and more weight if its priority is higher (`Claim.weight`). If only one client
  waits, it may queue a full batch more than can be done in time, so that a plan can choose among
  its items.
"""

from collections.abc import Sequence, Set
from heapq import heapify, heapreplace
from math import inf
from typing import NamedTuple

from service.batching.latency import Latency
from service.batching.traffic import Prospect

# Seconds from the arrival of an item without a deadline until it is due. Each level of priority
# shifts this by the same time.
PATIENCE_S = 1.0

DEFAULT_PRIORITY = 2  # 1 is the highest; 0 means the default
LOWEST_PRIORITY = 9
LEVELS = (
    f"1: the highest; {LOWEST_PRIORITY} and above: the lowest; 0: the default, {DEFAULT_PRIORITY}"
)
"""The sentence that names the priorities in OpenAPI, errors and documentation."""

# The least gain of a smaller batch, per item, as a share of the largest batch's time. Measured with
# linear L, Poisson arrivals and a load of 0.8: with 0.015 the p99 is 4.4% above the p99 of the
# least mean, with 0.02 6.4%, and with 0.01, where noise in L begins to choose sizes, 5.6%.
_CLEARLY = 0.015

# The least factor by which waiting must raise the throughput. With 1.015, twelve clients get 1%
# more if L rises at every second n, but in batches of unequal sizes, so their p99 grows.
_GAIN = 1.02

# Below this L(1), batches never wait: an event loop cannot time a fraction of L(1), and deciding
# would cost more than it gains. If jobs decode images, decoding is most of L(1). Larger batches do
# not shorten it, and deciding takes time from it.
SHORT_S = 0.0005
SHORT_WITH_DECODING_S = 0.003

# Every 256th batch takes all items that fit, so that the latency of every size stays up to date.
# With every 64th batch the p99 above is 4% worse.
_EXPLORE = 256

# For near deadlines: the parts of a full batch, and the effort per engine. A plan covers at most
# `_EFFORT` full batches of waiting items and half as many of expected items. For each number of
# parts, `_EFFORT` plans are kept, but at least `_PARTS`. This bounds a decision of one engine to
# 1.3 ms. Fewer items are in time with 4 plans instead of 8 (1% fewer if L is flat), with 2 plans
# (up to 9%), or without expected items (up to 8% on two engines if L rises at every second n).
_PARTS = 8
_EFFORT = 4


class Urgency(NamedTuple):
    """Holds a request's deadline and priority."""

    deadline: float = inf  # clock seconds
    priority: int = 0  # 1 is the highest

    @property
    def level(self) -> int:
        """Return the priority as a number from 1 (the highest) to LOWEST_PRIORITY. A priority of 0
        means the default. Larger numbers than LOWEST_PRIORITY mean the lowest."""
        return min(self.priority or DEFAULT_PRIORITY, LOWEST_PRIORITY)


NO_HURRY = Urgency()


class Claim(NamedTuple):
    """Describes consecutive items of one request in the queue, with their deadline and weight."""

    items: int
    deadline: float  # clock seconds; inf: none
    request: int = -1  # the same number for all claims of one request; negative: it has this one
    so_far: int = 0  # items of the request in this and earlier claims, where it has several
    weight: float = 1.0  # of an item that is refused; any without a deadline outweighs all


class Slot(NamedTuple):
    """Says when one engine becomes free, and how long its batches take. Slots are ordered by
    `free`."""

    free: float  # clock seconds when its batch should end; not before now
    latency: Latency


class Rivals(NamedTuple):
    """Says how many clients share the engines, and the fewest images that one of them has in
    progress."""

    clients: int = 1
    lightest: int = 1  # images that the lightest has inside at most


ALONE = Rivals()


class View(NamedTuple):
    """Holds the state of a batcher from which `decide` computes a decision for the engine that is
    free first. Times are seconds of the batcher's clock."""

    now: float
    depth: int  # items that wait
    latency: Latency
    busy_until: float | None = None  # when the running batch should end; None: none runs
    idle: float = 0.0  # share of recent time in which the engine ran nothing
    batches: int = 1  # dispatched so far
    prospects: Sequence[Prospect] = ()
    claims: Sequence[Claim] = ()  # all waiting items in order; empty if none has a deadline
    others: tuple[Slot, ...] = ()  # the other engines
    rivals: Rivals = ALONE
    rate: float = 0.0  # items that come in a second
    short_s: float = SHORT_S  # where L(1) is less, batches never wait

    @property
    def slots(self) -> list[Slot]:
        """Return all engines. The engine that runs the next batch is first."""
        return [Slot(_free(self), self.latency), *self.others]


class Decision(NamedTuple):
    """Says how many items a batcher dispatches now, when it decides again, and which requests it
    refuses. Requests are named by their indices in `View.claims`."""

    dispatch: int = 0  # items, the first that are not refused
    look_again: float = inf
    refused: tuple[int, ...] = ()
    enough: int = 0  # items that end the wait before `look_again`


def urgency_of(started: float, timeout_s: float | None, priority: int) -> Urgency:
    """Return the urgency of a request whose first bytes arrived at `started`. A timeout of None and
    a priority of 0 mean that the client gave none."""
    if timeout_s is None and not priority:
        return NO_HURRY
    return Urgency(inf if timeout_s is None else started + timeout_s, priority)


def due(now: float, urgency: Urgency = NO_HURRY) -> float:
    """Return the time by which an item that arrives now should be served."""
    if urgency is NO_HURRY:
        return now + PATIENCE_S
    level = urgency.level - DEFAULT_PRIORITY
    return min(urgency.deadline, now + PATIENCE_S) + level * PATIENCE_S


def completion(view: View, ahead: int, items: int) -> float:
    """Return when the last of `items` new items would be done, if `ahead` items are served before
    them."""
    return _free(view) + seconds_of(view.slots, ahead + items)


def share(inside: int, engines: int) -> int:
    """Return an equal part, for each engine, of the items that wait or run (`inside`).

    A larger batch would leave another engine idle, because clients send nothing while they wait for
    the batch's answers.
    """
    return -(-inside // engines)


def seconds_of(slots: Sequence[Slot], items: int) -> float:
    """Return the seconds that the engines in `slots` need for `items`, from the moment at which the
    first engine is free.

    Each batch goes to the engine that is free first.
    """
    if len(slots) == 1:
        return slots[0].latency.of(items)
    heap = list(slots)
    heapify(heap)
    begins = last = heap[0].free
    while items:
        free, latency = heap[0]
        idle = sum(slot.free <= free for slot in heap)  # these share what waits
        size = min(-(-items // idle), latency.max_batch)
        last = max(last, free + latency.of(size))
        items -= size
        heapreplace(heap, Slot(free + latency.of(size), latency))
    return last - begins


def decide(view: View) -> Decision:
    """Return how many of the waiting items to dispatch now, or when to decide again, and which
    requests to refuse."""
    if view.claims:
        return _by_deadlines(view)
    if view.busy_until is not None or not view.depth:
        return Decision()
    size = _size(view, view.depth)
    moment, enough = _pause(view, view.depth, size)
    return Decision(look_again=moment, enough=enough) if moment else Decision(size)


def _free(view: View) -> float:
    """Return when the next batch can begin."""
    return view.now if view.busy_until is None else max(view.now, view.busy_until)


def _bearable(view: View) -> int:
    """Return the largest batch size that is fair if several clients share the engines (see
    "Fairness" in the module's docstring)."""
    latency, (clients, lightest) = view.latency, view.rivals
    seconds = latency.seconds
    if clients == 1 or latency.most_rivals <= clients:
        return len(seconds)
    bearable_s = clients / 2 * seconds[min(lightest, len(seconds)) - 1]
    rates = [n / took for n, took in enumerate(seconds, 1)]
    enough = max(rates) / clients
    return max(
        next(n for n, rate in enumerate(rates, 1) if rate >= enough),
        max((n for n, took in enumerate(seconds, 1) if took <= bearable_s), default=1),
    )


def _size(view: View, most: int) -> int:
    """Return the batch size, at most `most`, with the lowest expected mean latency.

    Smaller batches are done sooner, but may delay all waiting items. Both times are compared.
    """
    seconds = view.latency.seconds
    most = min(most, _bearable(view))
    if most == 1 or not view.latency.known or view.batches % _EXPLORE == 0:
        return most
    item_s = min(took / n for n, took in enumerate(seconds, 1))
    whole_s = seconds[most - 1]
    enough = _CLEARLY * whole_s
    size, best = most, enough * most
    for first, took in enumerate(seconds[: most - 1], 1):
        rest = most - first
        # The sum over the items of how much sooner they are done in two batches.
        sooner_s = most * (whole_s - took) - rest * seconds[rest - 1]
        # The engine's time that this loses, if the rest can go in batches of the best size.
        lost_s = took + rest * item_s - whole_s
        if lost_s < 0:
            lost_s = min(0.0, lost_s + enough)
        # Until the queue is next empty, all that wait or come are late by what is lost: with a
        # fluid's arrivals that is the depth over the idle share.
        gain = view.idle * sooner_s - view.depth * lost_s
        if gain > best:
            size, best = first, gain
    idle = 1 + sum(other.free <= view.now for other in view.others)
    share = -(-view.depth // idle)
    # Smaller batches take more time in all: engines that are seldom idle have none to spare.
    spare = idle * seconds[share - 1] * (1 - view.idle) <= seconds[size - 1] if share < size else 0
    return share if spare else size


def _pause(view: View, depth: int, size: int) -> tuple[float | None, int]:
    """Return the time until which the batch should wait for further items, or None to dispatch it
    now. Also return the number of waiting items that ends the wait earlier."""
    latency = view.latency
    most = _bearable(view)
    best, moment, enough = _GAIN, None, 0
    taken = min((other.free for other in view.others), default=inf)  # then by another engine
    if depth >= most or latency.seconds[0] < view.short_s:
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
            if filled > depth and view.now < until < taken:
                # Of what waits by then a part may be done sooner a piece.
                for n in range(depth + 1, filled + 1):
                    gain = n / (until - since + latency.of(n)) / without
                    if gain > best:
                        best, moment, enough = gain, until, n
    return moment, enough


def _by_deadlines(view: View) -> Decision:
    """Do the same as `decide`, for a queue in which at least one item has a deadline."""
    slots, latency = view.slots, view.latency
    free, busy = slots[0].free, view.busy_until is not None
    claims = [
        claim if claim.request >= 0 else claim._replace(request=-2 - index)
        for index, claim in enumerate(view.claims)
    ]
    last_chance = [
        claim.deadline - seconds_of(slots, max(claim.items, claim.so_far)) for claim in claims
    ]
    gone = {
        claim.request
        for claim, moment in zip(claims, last_chance, strict=True)
        if moment < free or (busy and moment <= view.now)
    }
    left = [index for index, claim in enumerate(claims) if claim.request not in gone]
    size = 0
    if not busy and left:
        staying = [claims[index] for index in left]
        dropped, size = _plan(view, staying)
        if not dropped:
            moment, enough = _pause(view, sum(claim.items for claim in staying), size)
            full = latency.within(latency.max_batch)
            if moment and moment + full <= min(claim.deadline for claim in staying):
                return Decision(0, moment, _indices_of(gone, claims), enough)
        gone |= dropped
    # The running batch may take longer than expected: look again at the last chance.
    chances = (last_chance[index] for index in left if claims[index].request not in gone)
    again = inf if size else min(chances, default=inf)
    return Decision(size, again, _indices_of(gone, claims))


def _indices_of(requests: Set[int], claims: Sequence[Claim]) -> tuple[int, ...]:
    return tuple(index for index, claim in enumerate(claims) if claim.request in requests)


def _plan(view: View, claims: Sequence[Claim]) -> tuple[Set[int], int]:
    """Return the requests at the front of the queue to refuse, and the size of the batch to
    dispatch from the requests behind them.

    The result is the beginning of the best plan. The best plan has the highest total weight of
    items that meet their deadlines. Plans cover the waiting items and the arrivals expected at the
    recent rate. An expected item gets the lowest weight of the waiting items, and as much time as
    the waiting item with the latest deadline.
    """
    now, latency = view.now, view.latency
    part = -(-latency.max_batch // _PARTS)  # items that are planned as one
    most = _EFFORT * _PARTS * part * (1 + len(view.others))
    items = [
        (claim.request, claim.deadline, claim.weight if claim.deadline < inf else inf)
        for claim in claims
        for _ in range(min(claim.items, most))
    ][:most]
    moments = [deadline for _, deadline, _ in items]
    if min(moments) >= now + latency.within(latency.max_batch):  # then none delays another
        return frozenset(), _size(view, len(items))
    firsts = range(0, len(items), part)
    deadlines = [min(moments[index : index + part]) for index in firsts]
    weights = [sum(weight for *_, weight in items[index : index + part]) for index in firsts]
    waiting = len(deadlines)
    comes = [now] * waiting
    if view.rate:
        patience_s = max((moment for moment in moments if moment < inf), default=now) - now
        comes += [now + index * part / view.rate for index in range(1, _EFFORT // 2 * _PARTS + 1)]
        deadlines += [moment + patience_s for moment in comes[waiting:]]
        weights += [part * min(claim.weight for claim in claims)] * (len(comes) - waiting)
    dropped, size = _first_batch(view.slots, part, comes, deadlines, weights)
    gone = {request for request, *_ in items[: dropped * part]}
    staying = [deadline for request, deadline, _ in items if request not in gone]
    size = min(size * part, _fitting(latency, staying, now), _bearable(view))
    return gone, min(len(staying), max(1, size))


class _Plan(NamedTuple):
    """Describes one way to serve the first few groups of items."""

    free: tuple[float, ...]  # clock seconds at which each engine can begin, the earliest first
    first: tuple[int, int] | None = None  # dropped, and in the first batch


def _first_batch(
    slots: Sequence[Slot],
    part: int,
    comes: Sequence[float],
    deadlines: Sequence[float],
    weights: Sequence[float],
) -> tuple[int, int]:
    """Return how many groups of items to drop from the front of the queue, and how many of the next
    groups to put into the first batch.

    A group has `part` items. For each group, `comes` has the time at which its last item arrives,
    `deadlines` its nearest deadline, and `weights` its total weight. A plan serves the groups in
    order. Each batch runs on the engine that is free first, and is assumed to take as long as on
    the fastest engine. The best plan serves the most weight in time. Of two equally good plans, the
    plan that keeps the engines busy for a shorter time is chosen.
    """
    largest = slots[0].latency.max_batch
    seconds = [
        min(slot.latency.within(n) for slot in slots) for n in range(part, largest + 1, part)
    ]
    # By how many parts are decided, the plans for them by the weight of what they drop.
    plans = [{0.0: _Plan(tuple(slot.free for slot in slots))}]
    for decided, moment in enumerate(comes, 1):
        weight = weights[decided - 1]
        found = {dropped + weight: plan for dropped, plan in plans[-1].items()}
        earliest = inf
        for size, took in enumerate(seconds[:decided], 1):
            earliest = min(earliest, deadlines[decided - size])
            latest = earliest - took
            if moment > latest:
                break
            for dropped, plan in plans[decided - size].items():
                start = max(plan.free[0], moment)
                if start <= latest:
                    free = plan.free[1:]
                    free = tuple(sorted((*free, start + took))) if free else (start + took,)
                    if dropped not in found or sum(free) < sum(found[dropped].free):
                        found[dropped] = _Plan(free, plan.first or (decided - size, size))
        # To drop more is worth it only for more time.
        kept: dict[float, _Plan] = {}
        least = inf
        for dropped in sorted(found):
            plan = found[dropped]
            if sum(plan.free) < least:
                kept[dropped], least = plan, sum(plan.free)
                if len(kept) == max(_PARTS, _EFFORT * len(slots)):
                    break
        plans.append(kept)
    best = plans[-1][min(plans[-1])]
    return best.first or (len(comes), 0)


def _fitting(latency: Latency, deadlines: Sequence[float], start: float) -> int:
    """Return the largest n such that a batch of the first n items, begun at `start`, meets the
    deadlines of all its items."""
    earliest = inf
    for n, deadline in enumerate(deadlines[: latency.max_batch], 1):
        earliest = min(earliest, deadline)
        if start + latency.within(n) > earliest:
            return n - 1
    return min(latency.max_batch, len(deadlines))
