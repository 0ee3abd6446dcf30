"""What an answer to one picture must be, and whether two may be to the same one."""

from typing import Any, NamedTuple

import msgspec

PHASES = ("receive", "decode", "queue", "compute", "respond")

# How far one picture's probabilities may move with the batch it is in: an engine may sum in another
# order for every batch size, and with half-precision floats that shows.
SAME_WITHIN = 0.02


class BadAnswerError(ValueError):
    """An answer with status 200 that is not what was asked for."""


class Answer(NamedTuple):
    """A good answer to one picture."""

    probabilities: dict[int, float]  # by class, of the likeliest
    phases_ms: tuple[float, ...]  # the server's own account, one a name in PHASES; may be empty


def read_answer(body: bytes) -> Answer:
    """BadAnswerError unless the body is JSON with predictions for exactly one picture."""
    try:
        content = msgspec.json.decode(body)
        (result,) = content["results"]
        found = {int(p["index"]): float(p["probability"]) for p in result["predictions"]}
        phases_ms = _phases(content.get("timing_ms"))
    except (ValueError, TypeError, KeyError) as error:
        raise BadAnswerError(f"not an answer to one picture: {body[:80]!r}") from error
    if not found:
        raise BadAnswerError("an answer without predictions")
    return Answer(found, phases_ms)


def _phases(timing_ms: Any) -> tuple[float, ...]:
    if timing_ms is None:
        return ()
    return tuple(float(timing_ms[name]) for name in PHASES)


def same_picture(one: Answer, other: Answer) -> bool:
    """Whether both may be answers to one picture, in whatever batches it travelled.

    Of a class that an answer does not list it is known that it is no likelier than those listed.
    """
    return _agrees(one.probabilities, other.probabilities) and _agrees(
        other.probabilities, one.probabilities
    )


def _agrees(listed: dict[int, float], other: dict[int, float]) -> bool:
    least = min(other.values())
    for index, probability in listed.items():
        if index in other:
            if abs(probability - other[index]) > SAME_WITHIN:
                return False
        elif probability > least + SAME_WITHIN:
            return False
    return True
