"""Runs built-in photographs through a model to determine the kind of its scores and the preset for
its pixels.

A guessed preset is replaced if the photographs show that it is wrong and which preset is right. If
they show only that the guess is wrong, it is kept, with a warning.

If the model's labels name the objects in the photographs, the photographs are good evidence. With
the right preset, the network then recognises every photograph, and the right labels are far
likelier. With a wrong preset, it recognises hardly any.

With other labels, there is less evidence. A high probability proves little. For example, the pixels
of `caffe` are sixty times as large as the pixels of `imagenet`. If a network made for `imagenet`
gets them, it gives some class nearly 100% for any image. But if the pixels are too small, the
scores hardly change with the image. So the presets are compared by the share of the scores that
changes with the image (`_share`).

Measured with SqueezeNet 1.1 (trained, ImageNet), unchanged and wrapped for other presets, on three
photographs:

    made for  share with imagenet  caffe  inception  raw
    imagenet                0.70   0.60       0.71  0.62
    caffe                   0.10   0.70       0.04  0.55
    inception               0.69   0.60       0.70  0.62
    raw                     0.02   0.57       0.00  0.70

With the limits below, 1000 random choices of SqueezeNet's classes gave no false alarm with 5 or
more classes, and 2% false alarms with 2 classes. Seven networks with random weights, each with two
seeds, gave no false alarm, although the pixels of `caffe` raised their confidence from 0.35 to 1.0.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, log
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models import (
    OF_OWN_NORMALISATION,
    PRESETS,
    Engine,
    OutputKind,
    Pixels,
    Preprocessing,
    Scores,
    UnsupportedModelError,
    classes_of,
    each_preset,
    normalised,
    shown_by,
)
from service.engine.ranking import probabilities
from service.errors import EngineFailedError

if TYPE_CHECKING:  # it imports ONNX
    from models import Classifier

_log = logging.getLogger("convoy")

PHOTOGRAPHS = sorted((Path(__file__).parents[1] / "api/page/photographs").glob("*.jpg"))
"""The page's photographs, which show objects that an ImageNet network can recognise."""

_SHOWS = {
    "cat": ("tabby", "tiger cat", "egyptian cat"),
    "coffee": ("espresso", "cup", "coffee mug"),
    "rocket": ("missile", "projectile", "space shuttle"),
}

# Without names, a guess is tested only if its `share` is below `_HARDLY`. It is doubted if another
# preset's share is above `_CLEARLY` and above `_FAR` times its own.
_HARDLY, _CLEARLY, _FAR = 0.25, 0.4, 3.0
# The presets that may show this: the more presets are compared, the likelier one seems clearer by
# chance.
_MEASURED = ("imagenet", "caffe", "inception", "raw")
# A guess with a share below `_BLIND` is doubted if another preset's share is above `_SEES`.
_BLIND, _SEES = 0.01, 0.1
_MORE_NAMED = 2
# With fewer classes, three photographs say little: even a right model may score all of them alike.
_FEWEST_CLASSES = 5
# As logarithms: how much likelier the right names must be with a preset that replaces the guess,
# and the largest difference between presets that the photographs do not distinguish. Of such
# presets, the first in PRESETS is taken.
_FAR_LIKELIER, _AS_LIKELY = log(1000), log(20)
# Guesses for networks whose first operations show the scale of the pixels, but not the order of the
# channels.
_TWINS = {names[0]: names for names in OF_OWN_NORMALISATION.values()}
_LEAST = 1e-9  # lower probabilities count as this

Decode = Callable[[Path, Preprocessing], Pixels]


@dataclass(frozen=True)
class PresetTrial:
    """Holds the results of running a model on some images with one preset."""

    name: str
    used: bool  # by the model as it is set
    confidence: float  # the mean probability of the likeliest class
    share: float  # of the scores' size, that changes with the image; 0 for one image
    right: int  # images of which the likeliest class has a name that was expected
    likelihood: float = 0.0  # the logarithm of the probability of all expected names
    correct: tuple[bool, ...] = ()  # for each image whether it is among `right`


def judged(classifier: "Classifier", engine: Engine, decode: Decode) -> "Classifier":
    """Return the model with the kind of scores and the preset that the built-in photographs show.
    If they show only that a guessed preset is wrong, the model gets a warning.

    Raises UnsupportedModelError if nothing shows the kind of the scores.
    """
    if not classifier.shown:
        classifier = _with_kind(classifier, engine, decode)
    meaning, classes = classifier.preprocessing, classes_of(classifier.classes)
    guess, labels = meaning.guess, meaning.labels
    if not guess or meaning.frames is not None or len(each_preset(meaning)) == 1:
        return classifier
    images = {photograph: _SHOWS[photograph.stem] for photograph in PHOTOGRAPHS}
    are_named = all(_classes_named(shown, labels) for shown in images.values())
    (guessed,) = try_presets(classifier, engine, images, decode, [guess])
    if guessed.right == len(images) or not (are_named or guessed.share < _HARDLY):
        return classifier
    names = {*_TWINS.get(guess, PRESETS)} - {guess}
    others: list[PresetTrial] = []
    if are_named:  # one that names all leaves the rest nothing to say: a third of the runs
        first = dict([next(iter(images.items()))])
        likely = {t.name for t in try_presets(classifier, engine, first, decode, names) if t.right}
        others = try_presets(classifier, engine, images, decode, likely)
    if all(trial.right < len(images) for trial in others):
        others = try_presets(classifier, engine, images, decode, names)
    trials = sorted([guessed, *others], key=lambda trial: list(PRESETS).index(trial.name))
    if are_named:
        return _by_names(classifier, guessed, trials)
    if said := _by_shares(classifier.name, guessed, trials, classes):
        if classes < _FEWEST_CLASSES:
            _log.warning("%s", said)
            return classifier
        return replace(classifier, warning=said)
    return classifier


# --- what the scores are -------------------------------------------------------------------------


def _with_kind(classifier: "Classifier", engine: Engine, decode: Decode) -> "Classifier":
    """Run photographs and images of a single colour to find the kind of the model's scores, such as
    probabilities. Return the model with this kind."""
    meaning = classifier.preprocessing
    if meaning.frames is None:
        images = [decode(photograph, meaning) for photograph in PHOTOGRAPHS]
    else:
        images = [np.random.default_rng(0).integers(0, 256, meaning.image_shape, np.uint8)]
    images += [np.full(meaning.image_shape, level, np.uint8) for level in (0, 255)]
    rows = np.concatenate([engine.run([image]).scores for image in images]).astype(np.float64)
    kind = shown_by(rows) if np.isfinite(rows).all() else None
    if kind is None:
        raise UnsupportedModelError(
            f"{classifier.name}: neither the graph ({classifier.why}) nor the scores of"
            f" photographs, {rows.min():.3g} to {rows.max():.3g}, show the kind of scores; set"
            ' output = "probabilities", "sigmoid", "percent" or another kind in model.toml or with'
            " --set."
            " If the likeliest class has the lowest score, as with distances, export the model"
            " with negated scores"
        )
    why = "; ".join(filter(None, ("as the scores of built-in photographs show", classifier.why)))
    made = replace(classifier, preprocessing=replace(meaning, output=kind), shown=True, why=why)
    if np.isin(rows, (0, 1)).all():
        _log.warning(
            "%s: its scores for photographs are only 0 or 1, so they may be decisions. If a value"
            ' inside the model is a probability, set scores = "NAME" (the name of this value) in'
            " model.toml",
            classifier.name,
        )
    if kind is OutputKind.INDEPENDENT:
        _log.warning(
            "%s: %s. If the classes exclude each other, set output"
            ' = "probabilities" in model.toml or with --set',
            classifier.name,
            made.scores,
        )
    return made


# --- which preset --------------------------------------------------------------------------------


def try_presets(
    classifier: "Classifier",
    engine: Engine,
    images: Mapping[Path, Iterable[str]],
    decode: Decode,
    only: Collection[str] | None = None,
) -> list[PresetTrial]:
    """Run images through a model, once with every preset that fits the model, or only with the
    presets in `only`. `images` maps each image to the names of the objects in it.

    The model's own preprocessing is tried first if it is not a preset. Raises the errors of
    `decode` and of the engine.
    """
    own = replace(classifier.preprocessing, guess="")
    presets = dict(each_preset(own))
    if own not in presets.values():
        presets = {"as described": own} | presets
    if only is not None:
        presets = {name: preset for name, preset in presets.items() if name in only}
    tallies = {name: _Tally(preset) for name, preset in presets.items()}
    for file, expected in images.items():
        named = _classes_named(expected, own.labels)
        decoded: dict[object, Pixels] = {}  # most presets differ in the normalisation alone
        for name, preset in presets.items():
            key = preset.channels, preset.crop_mode, preset.resize, preset.interpolation
            if key not in decoded:
                decoded[key] = decode(file, preset)
            (scores,) = engine.run(normalised(decoded[key][np.newaxis], preset)).scores
            tallies[name].add(scores, named)
    return [tallies[name].trial(name, used=preset == own) for name, preset in presets.items()]


class _Tally:
    """Adds up the results of one preset over several images."""

    def __init__(self, preset: Preprocessing) -> None:
        self._output = preset.output
        self._correct: list[bool] = []
        self._confidence = self._likelihood = self._size = 0.0
        self._sum: NDArray[np.float64] | float = 0.0
        self._is_finite = True

    def add(self, scores: Scores, named: Sequence[int]) -> None:
        """Add an image's scores. `named` has the classes that are right for the image."""
        try:
            every = probabilities(scores, self._output)
        except EngineFailedError:  # extreme pixels may cause it
            self._is_finite = False
            every = np.zeros(classes_of(len(scores)))
        self._confidence += float(every.max())
        self._correct.append(int(every.argmax()) in named)
        if named:
            self._likelihood += log(max(_LEAST, float(every[list(named)].sum())))
        if self._is_finite:
            row = _logits(scores, self._output)
            self._sum += row
            self._size += float(row @ row)

    def trial(self, name: str, *, used: bool) -> PresetTrial:
        """Return the results so far. If a score was not finite, the results are the lowest possible
        numbers."""
        count = len(self._correct)
        if not self._is_finite:
            return PresetTrial(name, used, 0.0, 0.0, 0, -inf, (False,) * count)
        return PresetTrial(
            name,
            used,
            self._confidence / count if count else 0.0,
            _share(self._sum, self._size, count),
            sum(self._correct),
            self._likelihood,
            tuple(self._correct),
        )


def _share(total: NDArray[np.float64] | float, size: float, count: int) -> float:
    """Return the share of the scores that changes with the image, from 0 (all images have the same
    scores) to 1. `total` is the sum of the rows of scores, and `size` is the sum of |row|².

    For n = `count` rows, the share is 1 - n |mean of the rows|² / sum of |row|², or 0 if all rows
    are zero.
    """
    if not size:
        return 0.0
    mean = total / count
    return max(0.0, 1 - count * float(np.dot(mean, mean)) / size)


def label_names(label: str) -> list[str]:
    """Return the names in a label such as "n02123045 tabby, tabby cat", as plain words. The number
    in the label is also a name."""
    number, _, rest = label.partition(" ")
    numbered = len(number) == 9 and number[0] == "n" and number[1:].isdecimal()
    names = [number, *rest.split(",")] if numbered else label.split(",")
    return [plain for name in names if (plain := plain_words(name))]


def plain_words(text: str) -> str:
    """Return the text's words of letters and digits in lower case, with one space between them."""
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def _classes_named(names: Iterable[str], labels: tuple[str, ...]) -> Sequence[int]:
    """Return the classes whose labels contain one of the names."""
    by_name = _classes_by_name(labels)
    return sorted({index for name in names for index in by_name.get(name, ())})


@lru_cache(maxsize=1)
def _classes_by_name(labels: tuple[str, ...]) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        for name in label_names(label):
            found.setdefault(name, []).append(index)
    return found


def _logits(scores: Scores, output: OutputKind) -> NDArray[np.float64]:
    """Return the scores as logits, shifted to a mean of 0. Softmax ignores the shift."""
    row = scores.astype(np.float64)
    if len(row) == 1 or not (output.is_unbounded or output.by_softmax):
        row = np.log(np.maximum(probabilities(scores, output), np.finfo(np.float32).tiny))
    centred: NDArray[np.float64] = row - row.mean()
    return centred


def _by_names(
    classifier: "Classifier", guessed: PresetTrial, trials: Sequence[PresetTrial]
) -> "Classifier":
    """Return the model with the preset that recognises the photographs best, if one preset is
    clearly better than the guessed preset.

    Otherwise, keep the guessed preset, and add a warning if hardly any photograph is recognised
    with any preset. The model's labels must name the objects in the photographs.
    """
    likeliest = max(trials, key=lambda trial: (trial.right, trial.likelihood))
    alike = [
        trial
        for trial in trials
        if trial.right == likeliest.right and likeliest.likelihood - trial.likelihood <= _AS_LIKELY
    ]
    best = alike[0]  # the commonest
    whole, name = len(PHOTOGRAPHS), classifier.name
    more, likelier = (1, _AS_LIKELY) if guessed.name in _TWINS else (_MORE_NAMED, _FAR_LIKELIER)
    if best.right < guessed.right + more:
        if guessed.right or best.right > 1:
            return classifier
        said = (
            f"answers of {name} are probably wrong: its preset {guessed.name} is a guess. With this"
            f" preset, the model recognises {guessed.right} of {whole} built-in photographs, and"
            f" with any other preset at most {best.right}; set the pixel keys in model.toml to the"
            " values used in training"
        )
        return replace(classifier, warning=said)
    named = (
        f"with {best.name}, the model recognises {best.right} of {whole} built-in photographs, and"
        f" with the guessed preset {guessed.name} {guessed.right}"
    )
    others = ", ".join(other.name for other in alike[1:])
    unsure = f" (the photographs do not distinguish {best.name} from {others})" if others else ""
    if best.right == whole and best.likelihood - guessed.likelihood >= likelier:
        _log.warning(
            '%s: the preset "%s" is used: %s%s. To choose another, set preset = "NAME" in'
            " model.toml, or --preset",
            name,
            best.name,
            named,
            unsure,
        )
        return _with_preset(classifier, best.name)
    said = (
        f"answers of {name} are probably wrong: {named}{unsure}. To be sure, try"
        f' preset = "{best.name}" (--preset {best.name}) with convoy check and photographs of the'
        " model's classes"
    )
    return replace(classifier, warning=said)


def _with_preset(classifier: "Classifier", name: str) -> "Classifier":
    """Return the model with the channel order, scale, mean and std of a preset. The model's input
    size and crop do not change."""
    preset, meaning = PRESETS[name], classifier.preprocessing
    pixels = replace(
        meaning,
        channels=preset.channels,
        scale=preset.scale,
        mean=preset.mean,
        std=preset.std,
        guess=name,
    )
    origin = classifier.origin.replace(
        f"the preset {meaning.guess}, a guess",
        f"the preset {name}, chosen by the built-in photographs",
    )
    return replace(classifier, preprocessing=pixels, origin=origin)


def _by_shares(name: str, guessed: PresetTrial, trials: Sequence[PresetTrial], classes: int) -> str:
    """Return a warning if, with the guessed preset, the scores hardly depend on the photograph,
    although they do with another preset. Otherwise, return an empty text."""
    clearer = any(
        trial.share > max(_CLEARLY, _FAR * guessed.share)
        for trial in trials
        if trial.name in _MEASURED
    )
    seeing = [trial for trial in trials if trial.share > max(_SEES, _FAR * guessed.share)]
    if not (clearer or (guessed.share < _BLIND and seeing)):
        return ""
    seeing.sort(key=lambda trial: -trial.share)
    by = ", ".join(f"{trial.name} {trial.share:.0%}" for trial in seeing)
    wrong, sure = "are probably", ""
    if classes < _FEWEST_CLASSES:
        wrong = "may be"
        sure = (
            f". This is weak evidence, because the photographs need not show the {classes} classes"
        )
    which = (
        "The photographs do not show which preset is right, and perhaps none is. Try each preset,"
        f" such as --preset {seeing[0].name}, with convoy check and photographs of the model's"
        " classes"
    )
    return (
        f"answers of {name} {wrong} wrong: its preset {guessed.name} is a guess. With this preset,"
        f" the scores hardly depend on the image ({guessed.share:.0%} of them change with the"
        f" photograph, compared with {by}){sure}. {which}"
    )
