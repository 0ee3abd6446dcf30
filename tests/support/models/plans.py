"""What holds of every plan."""

from models.plan import Plan, Region


def check_operands(plan: Plan) -> None:
    """Offsets are in their regions, and buffers alive together lie apart."""
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
    placed = sorted(plan.buffers, key=lambda life: plan.offsets[life.name])
    for index, life in enumerate(placed):
        end = plan.offsets[life.name] + life.nbytes
        for other in placed[index + 1 :]:
            assert plan.offsets[other.name] >= end or not life.meets(other)
