"""Parts of the engine that are left out, one at a time, to see what each gains on a GPU."""

SWITCHES = (
    "dependent launches",  # that begin before the one ahead has ended
    "branches",  # side by side
    "one graph",  # the copy of the images inside the graph
)


def without(switch: str) -> str:
    """The name of Convoy's side that leaves a part out."""
    return f"convoy without {switch}"
