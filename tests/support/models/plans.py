"""What holds of every plan."""

from models.plan import Plan, Region


def check_operands(plan: Plan) -> None:
    """Offsets are in their regions, and buffers that may be alive together lie apart.

    Two may be where some step of each is not before, nor after, all steps of the other.
    """
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
    before: list[set[int]] = []
    for after in plan.after:
        before.append(set(after).union(*(before[other] for other in after)))
    users = {
        life.name: [
            index
            for index, step in enumerate(plan.steps)
            for at in step.operands.values()
            if at.region is Region.ARENA
            and plan.offsets[life.name] <= at.offset < plan.offsets[life.name] + life.nbytes
            and life.first <= index <= life.last
        ]
        for life in plan.buffers
    }

    def ends_before(one: str, other: str) -> bool:
        return all(step in before[later] for step in users[one] for later in users[other])

    placed = sorted(plan.buffers, key=lambda life: plan.offsets[life.name])
    for index, life in enumerate(placed):
        end = plan.offsets[life.name] + life.nbytes
        for other in placed[index + 1 :]:
            assert (
                plan.offsets[other.name] >= end
                or ends_before(life.name, other.name)
                or ends_before(other.name, life.name)
            )
