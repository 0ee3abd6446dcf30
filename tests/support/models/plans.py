"""Checks invariants of every plan."""

from collections.abc import Callable, Collection, Iterable

from models.arena import Lifetime, aligned
from models.plan import Plan, Region, Step


def check_operands(plan: Plan) -> None:
    """Check that all offsets lie within their regions. Also check that two buffers do not overlap
    if they are in use at the same time."""
    sizes = {
        Region.ARENA: plan.arena_bytes,
        Region.INPUT: plan.input_bytes,
        Region.OUTPUT: plan.output_bytes,
        Region.COUNTERS: plan.counter_bytes,
    }
    for step in plan.steps:
        for name, at in step.operands.items():
            if at.region is Region.WEIGHTS:
                assert at.weight in plan.weights
            else:
                assert 0 <= at.offset < sizes[at.region], (step.name, name)
    users, apart = _users(plan), in_turn(plan)
    placed = sorted(plan.buffers, key=lambda life: plan.offsets[life.name])
    for index, life in enumerate(placed):
        end = plan.offsets[life.name] + life.nbytes
        for other in placed[index + 1 :]:
            assert plan.offsets[other.name] >= end or apart(users[life.name], users[other.name])


def in_turn(plan: Plan) -> Callable[[Collection[int], Collection[int]], bool]:
    """Return a function that receives the steps of two buffers. It returns whether one buffer is
    always used before the other, because all its steps end before any step of the other buffer
    begins.

    Either buffer may be first. If the function returns False, the buffers may be in use at the same
    time.
    """
    before: list[set[int]] = []
    for after in plan.after:
        before.append(set(after).union(*(before[other] for other in after)))

    def ends_before(one: Collection[int], other: Collection[int]) -> bool:
        return all(step in before[later] for step in one for later in other)

    return lambda one, other: ends_before(one, other) or ends_before(other, one)


def least_arena(plan: Plan) -> int:
    """Return a lower bound on the size of the arena, in bytes: the largest total size of buffers
    that may all be in use at the same time."""
    users, apart = _users(plan), in_turn(plan)
    sizes = {life.name: aligned(life.nbytes) for life in plan.buffers}
    beside = {
        name: {other for other in sizes if not apart(users[name], users[other])} for name in sizes
    }
    largest = 0

    def extend(taken: int, others: set[str]) -> None:
        nonlocal largest
        largest = max(largest, taken)
        for name in sorted(others, key=lambda each: -sizes[each]):
            if taken + sum(sizes[each] for each in others) <= largest:
                return
            others = others - {name}
            extend(taken + sizes[name], others & beside[name])

    extend(0, set(sizes))
    return largest


def _users(plan: Plan) -> dict[str, list[int]]:
    """Return the steps that read or write each buffer of the arena.

    If steps run concurrently, the steps that use a buffer may not form one range. Then the plan
    lists them. A test of random graphs compares these lists with the tape.
    """
    return {
        life.name: [
            index
            for index, step in enumerate(plan.steps)
            if (life.users >> index & 1 if life.users else _touches(plan, life, index, step))
        ]
        for life in plan.buffers
    }


def _touches(plan: Plan, life: Lifetime, index: int, step: Step) -> bool:
    begin = plan.offsets[life.name]
    places = [at.offset for at in step.operands.values() if at.region is Region.ARENA]
    alive = life.first <= index <= life.last
    return alive and any(begin <= place < begin + life.nbytes for place in places)


def lower_bound(lifetimes: Iterable[Lifetime]) -> int:
    """Return the most bytes that are in use at one step. No layout can use fewer bytes."""
    changes: dict[int, int] = {}
    for life in lifetimes:
        changes[life.first] = changes.get(life.first, 0) + aligned(life.nbytes)
        changes[life.last + 1] = changes.get(life.last + 1, 0) - aligned(life.nbytes)
    now = peak = 0
    for _, change in sorted(changes.items()):
        now += change
        peak = max(peak, now)
    return peak
