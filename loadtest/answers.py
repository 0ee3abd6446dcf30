"""Parses the server's answers, and detects an answer that belongs to another image."""

from typing import NamedTuple

import msgspec

PHASES = ("receive", "decode", "queue", "compute", "respond")

# The largest allowed difference between an image's probabilities in different batches. An engine
# may sum in another order for every batch size, which is visible with half-precision floats.
TOLERANCE = 0.02


class BadAnswerError(ValueError):
    """Raised if an answer with status 200 does not have the expected form."""


class Answer(NamedTuple):
    """Holds a valid answer to one image."""

    probabilities: dict[int, float]  # of the top k classes, by class
    phases_ms: tuple[float, ...]  # the server's times of PHASES, or empty
    model: str = ""


def read_answer(body: bytes) -> Answer:
    """Parse an answer. Raises BadAnswerError unless the body is JSON with predictions for one
    image."""
    try:
        content = msgspec.json.decode(body)
        (result,) = content["results"]
        found = {int(p["index"]): float(p["probability"]) for p in result["predictions"]}
        timing_ms = content.get("timing_ms")
        phases_ms = () if timing_ms is None else tuple(float(timing_ms[name]) for name in PHASES)
    except (ValueError, TypeError, KeyError) as error:
        raise BadAnswerError(
            f"a body that is not a valid answer for one image: {body[:80]!r}"
        ) from error
    if not found:
        raise BadAnswerError("an answer that has no predictions")
    return Answer(found, phases_ms, str(content.get("model", "")))


def same_image(one: Answer, other: Answer) -> bool:
    """Return whether both answers may belong to the same image. Small differences are allowed,
    because the server may have run the image in different batches.

    An answer lists only the likeliest classes, so a class that is missing has at most the lowest
    probability in the list.
    """
    a, b = one.probabilities, other.probabilities
    return _agrees(a, b) and _agrees(b, a)


def _agrees(listed: dict[int, float], other: dict[int, float]) -> bool:
    least = min(other.values())
    return all(
        abs(probability - other[index]) <= TOLERANCE
        if index in other
        else probability <= least + TOLERANCE
        for index, probability in listed.items()
    )
