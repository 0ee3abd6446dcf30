"""Tests presets by how well a network tells images apart, and whether it names them right.

A guessed preset is tried on the built-in photographs, beside the others that fit. Confidence says
little: a network made for `imagenet` is sure of everything where it gets the pixels of `caffe`,
which are sixty times as large. What a wrong preset does show in is the share of the scores that
changes with the image: where pixels are too small, the network hardly sees them.

SqueezeNet 1.1 (trained, ImageNet), as it is and wrapped for other presets; three photographs:

    made for    share by imagenet  caffe  inception  raw
    imagenet                0.70   0.60       0.71  0.62
    caffe                   0.10   0.70       0.04  0.55
    inception               0.69   0.60       0.70  0.62
    raw                     0.02   0.57       0.00  0.70

By the bounds below, of 1000 draws of its classes none was a false alarm with 5 classes or more, 2%
were with 2. Seven networks of random weights gave none with two seeds each, though the pixels of
`caffe` took their confidence from 0.35 to 1.0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models import (
    Classifier,
    Engine,
    OutputKind,
    Pixels,
    Preprocessing,
    Scores,
    each_preset,
    normalised,
)
from service.engine.ranking import ScoreRow, top_k
from service.errors import EngineFailedError

PHOTOGRAPHS = sorted((Path(__file__).parents[1] / "api/page/photographs").glob("*.jpg"))
"""Photographs of the page, from which an ImageNet network can tell what they show."""

_SHOWS = {
    "cat": ("tabby", "tiger cat", "egyptian cat"),
    "coffee": ("espresso", "cup", "coffee mug"),
    "rocket": ("missile", "projectile", "space shuttle"),
}

# Where a guess is doubted: it tells photographs apart by less than `_HARDLY`, another by more than
# `_CLEARLY` and `_FAR` times as far; or another names so many photographs more.
_HARDLY, _CLEARLY, _FAR = 0.25, 0.4, 3.0
_MORE_NAMED = 2
_FEWEST_CLASSES = 5

Decode = Callable[[Path, Preprocessing], Pixels]


@dataclass(frozen=True)
class PresetTrial:
    """Holds the results of one preset on some images."""

    name: str
    used: bool  # by the model as it is set
    confidence: float  # the mean probability of the likeliest class
    share: float  # of the scores' size, that changes with the image; 0 for one image
    right: int  # images of which the likeliest class has a name that was expected


def try_presets(
    classifier: Classifier,
    engine: Engine,
    images: Mapping[Path, Iterable[str]],
    decode: Decode,
) -> list[PresetTrial]:
    """Run images through every preset that fits; `images` maps each to its right names.

    The model's own preprocessing comes first if it is not a preset. Raises what `decode` and the
    engine raise.
    """
    own = replace(classifier.preprocessing, guess="")
    presets = dict(each_preset(own))
    if own not in presets.values():
        presets = {"as described": own} | presets
    return [
        replace(_try(name, preset, engine, images, decode), used=preset == own)
        for name, preset in presets.items()
    ]


def doubt(classifier: Classifier, engine: Engine, decode: Decode) -> str:
    """Return why a guessed preset is probably wrong, judged by built-in photographs, or "".

    Empty also where nothing was guessed, no other preset fits, or there are too few classes.
    """
    guess = classifier.preprocessing.guess
    if not guess or len(each_preset(classifier.preprocessing)) == 1:
        return ""
    images = {photograph: _SHOWS[photograph.stem] for photograph in PHOTOGRAPHS}
    trials = try_presets(classifier, engine, images, decode)
    guessed = next(trial for trial in trials if trial.name == guess)
    best = max(trials, key=lambda trial: (trial.right, trial.share))
    if not _doubts(guessed, best, classifier.classes):
        return ""
    return _sentence(classifier.name, guessed, best)


def label_names(label: str) -> list[str]:
    """Return the names in a label such as "n02123045 tabby, tabby cat", in plain words and with its
    number."""
    number, _, rest = label.partition(" ")
    numbered = len(number) == 9 and number[0] == "n" and number[1:].isdecimal()
    names = [number, *rest.split(",")] if numbered else label.split(",")
    return [plain for name in names if (plain := plain_words(name))]


def plain_words(text: str) -> str:
    """Return the text's letters and digits in lower case, with one space for all between."""
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def _try(
    name: str,
    preset: Preprocessing,
    engine: Engine,
    images: Mapping[Path, Iterable[str]],
    decode: Decode,
) -> PresetTrial:
    """Return a preset's trial, all zero if a score is not finite, which extreme pixels may
    cause."""
    rows: list[NDArray[np.float64]] = []
    confidences, right = [], 0
    for file, expected in images.items():
        tensor = normalised(decode(file, preset)[np.newaxis], preset)
        (scores,) = engine.run(tensor).scores
        try:
            (best,) = top_k(ScoreRow(scores), 1, preset.output, preset.labels)
        except EngineFailedError:
            return PresetTrial(name, False, 0.0, 0.0, 0)
        confidences.append(best["probability"])
        right += not set(expected).isdisjoint(label_names(best["label"]))
        rows.append(_logits(scores, preset.output))
    return PresetTrial(name, False, float(np.mean(confidences)), _share(rows), right)


def _logits(scores: Scores, output: OutputKind) -> NDArray[np.float64]:
    """Return logits up to a constant, which softmax ignores."""
    row = scores.astype(np.float64)
    if output is OutputKind.PROBABILITIES:
        row = np.log(np.maximum(row, np.finfo(np.float32).tiny))
    centred: NDArray[np.float64] = row - row.mean()
    return centred


def _share(rows: Sequence[NDArray[np.float64]]) -> float:
    """Return 1 - n |mean of the rows|² / sum of |row|², or 0 if all rows are equal or zero."""
    size = sum(float(row @ row) for row in rows)
    mean = np.mean(rows, axis=0)
    return max(0.0, 1 - len(rows) * float(mean @ mean) / size) if size else 0.0


def _doubts(guess: PresetTrial, best: PresetTrial, classes: int) -> bool:
    if best.right >= guess.right + _MORE_NAMED:
        return True
    if guess.right == len(PHOTOGRAPHS):
        return False
    blind = guess.share < _HARDLY and best.share > max(_CLEARLY, _FAR * guess.share)
    return blind and classes >= _FEWEST_CLASSES


def _sentence(name: str, guess: PresetTrial, best: PresetTrial) -> str:
    named = ""
    if best.right > guess.right:
        named = (
            f", and names {guess.right} of {len(PHOTOGRAPHS)} of them where {best.name} names"
            f" {best.right}"
        )
    return (
        f"answers of {name} are probably wrong: its preset {guess.name} is a guess, by which it"
        f" hardly tells photographs apart ({guess.share:.0%} of its scores change with the"
        f" photograph, by {best.name} {best.share:.0%}){named}; set preset = "
        f'"{best.name}": --preset {best.name}, or in its model.toml'
    )
