"""Reads a model's description from flags, `model.toml`, files of other programs, and presets.

    preset = "imagenet"        # or "caffe", "inception", "raw", "digits" and others (docs), or the
                               # name of torchvision weights, such as "resnet50.IMAGENET1K_V2"
    size = 224                 # or height and width
    frames = 16                # frames of a clip; normally read from the model
    sampling = "uniform"       # frames that are taken from a longer clip: or "first", "stride"
    stride = 2                 # with sampling = "stride": every second frame is taken
    resize = 256               # length of the shorter side before the crop
    crop_pct = 0.875           # instead of resize: the crop's side divided by resize
    crop_mode = "crop"         # or "squash": both sides are resized; "pad": the longer side
    pad = [114, 114, 114]      # with "pad": the colour around the image, or "white", "black"
    interpolation = "bilinear" # or "nearest", "bicubic", "lanczos", "box", "hamming"
    exact = false              # true: pixels are bit-identical to those of torchvision and timm
    channels = "rgb"           # or "bgr", "grey"
    layout = "nchw"            # or "nhwc"; normally read from the model
    scale = 0.00392156862745098
    mean = [0.485, 0.456, 0.406]
    std = [0.229, 0.224, 0.225]
    scores = "logits"          # name of the output with the scores; normally detected
    output = "logits"          # meaning of the scores, if Convoy cannot detect it: or "sigmoid",
                               # "probabilities", "independent-probabilities", "percent" (docs)
    labels = "labels.txt"      # or JSON, YAML, CSV; the path is relative to the TOML file
    precision = "fp32"         # precision on a GPU: or "3xtf32", "tf32", "fp16"
    max_batch = 8              # most images in a batch; --max-batch limits all models
    timeout_ms = 100           # deadline of requests that set no deadline or a later one
    priority = 2               # priority of requests that set none
    embedding = "/Flatten"     # node whose output is the embedding; normally detected;
                               # "none" disables the embedding

Every key is optional. If several sources set the same key, the first of these is used: a flag,
`model.toml`, a file of another program beside the model (`models/readers`), the metadata in the
model file, the preset. Keys that no source sets are guessed from the shape of the model's input.
"""

import logging
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from glob import escape
from os.path import relpath
from pathlib import Path, PurePath
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TypeVar

from kernels.problems.precision import Precision
from models.errors import PreprocessingError
from models.keys import BESIDE_PIXELS, CHOICES, EVERY_PRESET, parse_keys
from models.preprocessing import (
    GREY_OF_OWN,
    OF_OWN_NORMALISATION,
    PRESETS,
    ChannelOrder,
    CropMode,
    Layout,
    Preprocessing,
    Rounding,
    Sampling,
)
from models.readers import (
    NotLabelsError,
    Reading,
    files_beside,
    folders_beside,
    read_beside,
    unread_beside,
)
from models.readers.metadata import read_metadata
from models.readers.reading import read_text
from models.scores import OutputKind
from models.served import Serving

if TYPE_CHECKING:  # it imports the readers of ONNX
    from models.onnx_loader.own_normalisation import OwnNormalisation

_log = logging.getLogger(__name__)

_LONGEST = 2000  # characters of the line that names the source of each key

_Path = TypeVar("_Path", bound=PurePath)

_NORMALISING = ("scale", "mean", "std")
_OF_SERVING = ("max_batch", "timeout_ms", "priority")


@dataclass(frozen=True, slots=True)
class Description:
    """Holds the settings of a model that come from outside its network, and the source of each."""

    preprocessing: Preprocessing
    precision: Precision | None  # None: the network's own
    serving: Serving
    origin: str  # one line: the keys from each file, the overruled keys and the unused keys
    labels_from: str  # the file of the labels
    labels_found: bool = False  # Convoy found this file; no flag and no TOML file names it
    embedding: str | None = None  # the node that computes it; None: Convoy finds it
    output: OutputKind | None = None  # the kind of scores; None: no source names it
    scores: str | None = None  # the output with the scores; None: Convoy finds it


def files_of(model_path: Path) -> Iterator[Path]:
    """Yield the files from which a model is read.

    These are the model itself, the files in its folder whose names begin with the model's name
    (such as external weights), and the files that describe it.
    """
    beside = model_path.parent.glob(f"{escape(model_path.stem)}*")
    yield from sorted(path for path in beside if path == model_path or path.suffix != ".onnx")
    for folder in folders_beside(model_path):
        if folder.is_dir():
            yield folder / "model.toml"
            yield from sorted(files_beside(model_path, folder.iterdir()))


def descriptions_of(model_path: _Path) -> list[_Path]:
    """Return the paths of TOML files that may describe a model, in order of precedence.

    The first file that exists is used. The order is: the TOML file with the model's name,
    `model.toml` in the model's folder, and `model.toml` in the parent folder. The parent folder
    counts only if the model's folder can be the folder of a version.
    """
    folders = folders_beside(model_path)
    return [model_path.with_suffix(".toml"), *(folder / "model.toml" for folder in folders)]


def description_to_write(model_path: _Path) -> _Path:
    """Return the path of the TOML file that a user should write to describe a model.

    For a model in the folder of a version, the file is in the parent folder, so that it describes
    all versions.
    """
    own, *shared = descriptions_of(model_path)
    return shared[-1] if shared[1:] else own


def load_description(
    model_path: Path,
    input_shape: Sequence[int | None],
    overrides: Mapping[str, object] | None = None,
    metadata: Mapping[str, str] | None = None,
    *,
    takes_bytes: bool = False,
    own: "OwnNormalisation | None" = None,
) -> Description:
    """Return the description of the model at `model_path`.

    The sources are `overrides`, the files next to the model, and `metadata`, which comes from the
    model file.

    `input_shape` is the shape of one image in the model's layout, such as (3, 224, 224), or of a
    clip of 16 frames, such as (3, 16, 112, 112). A size that the model does not fix is None or
    below 1. `overrides` are command-line flags with the keys of model.toml. The value of an absent
    flag is None. If the flags include a preset, it replaces the preset of the file. Each guess is
    logged as a warning. If `takes_bytes`, the model gets pixels unchanged, and scale, mean and std
    are ignored. `own` describes how the network itself normalises pixels, or is None if this is
    unknown.

    Raises PreprocessingError if a file or a flag is invalid or does not fit `input_shape`.
    """
    shape = _known(input_shape)
    flags = parse_keys("the flags", {k: v for k, v in (overrides or {}).items() if v is not None})
    path = _description_of(model_path)
    table = _read(path) if path else {}
    described = parse_keys(str(path), table, path.parent) if path else {}
    if "preset" in flags:
        described = {k: v for k, v in described.items() if k in BESIDE_PIXELS}
    given: dict[str, Any] = {}
    sources: dict[str, list[str]] = {}
    unread: list[str] = []
    _add("the flags", flags, given, sources)
    shown = _shown_file(path, model_path) if path else ""
    _add(shown, described, given, sources)
    channels = shape[-1] if _layout(shape, given) is Layout.NHWC else shape[0]
    read = [
        *read_beside(model_path),
        read_metadata(
            model_path,
            metadata or {},
            _sides(shape, given),
            channels,
            normalises=own is not None,
        ),
    ]
    readings = [(_shown_file(one.file, model_path), one) for one in read if one is not None]
    source, trained = str(path) if path and described else "the preprocessing", "preset" in given
    for name, reading in readings:
        for doubt in reading.doubts:
            _log.warning("%s: %s", name, doubt)
        file = str(reading.file)
        if reading.unclear and "output" not in given:
            raise PreprocessingError(f"{file}: {reading.unclear}")
        _add(name, parse_keys(file, reading.serving), given, sources)
        if reading.labels and "labels" not in given:
            try:
                _add(name, {"labels": reading.labels()}, given, sources)
            except NotLabelsError as error:
                unread.append(str(error))
        if reading.pixels and not trained:
            pixels = parse_keys(file, reading.pixels())
            # `read_metadata` compares the metadata with `own` itself.
            if own and reading.file != model_path and given.keys().isdisjoint(_NORMALISING):
                pixels = _before_own(own, channels, name, pixels)
            _add(name, pixels, given, sources)
            source = f"{source} with {file}" if described else file
            trained = True
    of_own = _of_own(own, channels, given, sources)
    if not (takes_bytes or of_own or "preset" in given) and CHOICES & given.keys():
        _add_guessed(channels, given, sources)
    preprocessing = _settle(
        source, model_path, input_shape, shape, given, of_own, as_bytes=takes_bytes
    )
    serving = Serving(**{key: given[key] for key in _OF_SERVING if key in given})
    if not preprocessing.labels:
        _say_unlabelled(model_path, unread)
    if takes_bytes:
        preprocessing = _as_bytes(preprocessing, model_path, given, unread)
    origin = [*_origin(preprocessing, serving, sources, readings, of_own), *unread]
    origin += _unlikely_mean(model_path, given, preprocessing)
    labels_from, found = _labels_from(sources, {"the flags": overrides or {}, shown: table})
    return Description(
        preprocessing,
        given.get("precision"),
        serving,
        shorten("; ".join(origin), _LONGEST, placeholder=" ..."),
        labels_from,
        found,
        given.get("embedding"),
        given.get("output"),
        given.get("scores"),
    )


def _labels_from(
    sources: Mapping[str, Sequence[str]], tables: Mapping[str, Mapping[str, object]]
) -> tuple[str, bool]:
    """Return the file of the labels, and whether Convoy found it. `tables` are the flags and the
    TOML file, which name the file of the labels instead."""
    source = next((name for name, keys in sources.items() if "labels" in keys), "")
    named = tables.get(source, {}).get("labels")
    return (source, source != "") if named is None else (str(named), False)


def _of_own(
    own: "OwnNormalisation | None",
    channels: int,
    given: dict[str, Any],
    sources: dict[str, list[str]],
) -> str:
    """Return the name of the preset for a network that normalises pixels itself, or "" if it does
    not.

    The result is also "" if `given` (the settings so far) has a preset, scale, mean or std. If the
    network's first operations show whether channels are RGB or BGR, this order is added to `given`.
    If they cut out the centre of the image, `given` gets a `crop_pct` of 1.
    """
    if own is None or {"preset", *_NORMALISING} & given.keys():
        return ""
    if own.order and channels != 1:
        _add("its first operations", {"channels": ChannelOrder(own.order)}, given, sources)
    if own.crops:  # the image is not cut twice
        _add("its first operations", {"crop_pct": 1.0}, given, sources)
    return _preset_of(own, channels)


def _preset_of(own: "OwnNormalisation", channels: int) -> str:
    """Return the name of the preset whose pixels the network's first operations expect."""
    return GREY_OF_OWN[own.most] if channels == 1 else OF_OWN_NORMALISATION[own.most][0]


def _before_own(
    own: "OwnNormalisation", channels: int, name: str, pixels: dict[str, Any]
) -> dict[str, Any]:
    """Return the `pixels` that a file sets, without a normalisation that the network's first
    operations would repeat, and without an order of channels if these operations show it."""
    preset = EVERY_PRESET[_preset_of(own, channels)]
    twice = [
        key for key in _NORMALISING if pixels.get(key, getattr(preset, key)) != getattr(preset, key)
    ]
    if not twice:
        return pixels
    _log.warning(
        "%s: the network's first operations already normalise pixels, so scale, mean and std"
        " are not used. If the network needs both, set them in model.toml",
        name,
    )
    dropped = {*_NORMALISING, *(["channels"] if own.order else [])}
    return {key: value for key, value in pixels.items() if key not in dropped}


def _add(
    name: str,
    values: Mapping[str, Any],
    given: dict[str, Any],
    sources: dict[str, list[str]],
) -> None:
    """Add to `given` (the settings so far) each of the `values` whose key `given` lacks. Append
    these keys to `sources[name]`.

    If `given` has `resize`, `crop_pct` is not added, and vice versa.
    """
    taken = {key: value for key, value in values.items() if key not in given}
    for key, other in (("resize", "crop_pct"), ("crop_pct", "resize")):
        if key in given:
            taken.pop(other, None)
    given |= taken
    if taken:
        sources.setdefault(name, []).extend(taken)


# --- sources of the keys --------------------------------------------------------------------------


def _shown_file(file: Path, model_path: Path) -> str:
    """Return the path of a file relative to the model's folder, for display."""
    return Path(relpath(file, model_path.parent)).as_posix()


def _origin(
    preprocessing: Preprocessing,
    serving: Serving,
    sources: Mapping[str, Sequence[str]],
    readings: Sequence[tuple[str, Reading]],
    own: str,
) -> Iterator[str]:
    """Yield lines for users that name the keys that each source set, the keys whose values were
    overruled, and the keys that are not used."""
    for name, keys in sources.items():
        yield f"{name}: {', '.join(keys)}"
    if preprocessing.guess:
        yield f"the preset {preprocessing.guess}, a guess"
    if own:
        yield f"its first operations normalise pixels, so the preset {own} does not normalise them"
    used = {**_values(preprocessing), **_values(serving)}
    for name, reading in readings:
        if overruled := list(_overruled(reading, used)):
            yield f"{name} says otherwise: {', '.join(overruled)}"
        if reading.ignored:
            yield f"{name}, not used: {', '.join(reading.ignored)}"
        yield from (f"{name}: {doubt}" for doubt in reading.doubts)


def _values(thing: Preprocessing | Serving) -> dict[str, Any]:
    return {entry.name: getattr(thing, entry.name) for entry in fields(thing)}


def _overruled(reading: Reading, used: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys whose value in a file differs from the value in use."""
    said = parse_keys(str(reading.file), reading.serving)
    try:
        if reading.labels:
            said["labels"] = reading.labels()
        if reading.pixels:
            said |= parse_keys(str(reading.file), reading.pixels())
    except NotLabelsError:
        pass  # another place reports this
    except PreprocessingError as error:  # an unused file may be invalid
        yield str(error)
    if "crop_pct" in said:
        said["resize"] = _resized(used["height"], used["width"], said.pop("crop_pct"))
    yield from (key for key, value in said.items() if used[key] != value)


# --- fitting to the model ------------------------------------------------------------------------


def _settle(
    source: str,
    model_path: Path,
    input_shape: Sequence[int | None],
    shape: Sequence[int],
    given: Mapping[str, Any],
    own: str,
    *,
    as_bytes: bool,
) -> Preprocessing:
    """Return the preprocessing that follows from the given keys, a preset and the shape of the
    input."""
    _refuse_two_meanings(shape, given)
    layout = _layout(shape, given)
    channels, *spatial = shape if layout is Layout.NCHW else (shape[-1], *shape[:-1])
    *depth, height, width = spatial
    name, guess = given.get("preset"), ""
    if name is None:
        name = own or ("raw" if as_bytes and channels != 1 else _guessed(channels))
        if not as_bytes:
            if name != own:
                _say_guess(model_path, name, given, channels)
            # If the name is `own`, only the order of the channels is a guess.
            guess = "" if CHOICES & given.keys() else name
    preset = EVERY_PRESET[name]

    height, width = given.get("height") or height, given.get("width") or width
    if not (height and width):
        if "preset" not in given:
            key = _missing(height, width)
            example = f"{key} = {height or width or 224}"
            raise PreprocessingError(
                f"the model takes images of {_shown(input_shape)}. This shape leaves their {key}"
                f" open. Set {key} as in training, for example {example}, in"
                f" {description_to_write(model_path)} or with --set {example.replace(' ', '')}"
            )
        height, width = height or preset.size, width or preset.size
        _log.warning(
            "%s takes images of any size; they are resized to %d×%d, the size of the preset %r",
            model_path.name,
            height,
            width,
            name,
        )
    crop_mode = given.get("crop_mode", preset.crop_mode)
    resize = given.get("resize")
    if "crop_pct" in given:
        resize = _resized(height, width, given["crop_pct"])
    elif resize is None:
        cuts = crop_mode is CropMode.CROP
        resize = preset.resized(height, width) if cuts else max(height, width)
    preprocessing = Preprocessing(
        height=height,
        width=width,
        crop_mode=crop_mode,
        resize=resize,
        interpolation=given.get("interpolation", preset.interpolation),
        channels=given.get("channels", preset.channels),
        layout=layout,
        scale=given.get("scale", preset.scale),
        mean=given.get("mean", preset.mean),
        std=given.get("std", preset.std),
        output=given.get("output", OutputKind.LOGITS),
        labels=given.get("labels", ()),
        frames=_frames(source, depth, given.get("frames"), shape),
        exact=given.get("exact", False),
        longer_side=given.get("longer_side", Rounding.DOWN),
        crop_offset=given.get("crop_offset", Rounding.NEAREST),
        guess=guess,
        pad=_pad(source, crop_mode, given.get("channels", preset.channels), given.get("pad", ())),
        **_sampling(source, depth, given),
    )
    _check(source, preprocessing, shape)
    return preprocessing


def _missing(height: int, width: int) -> str:
    """Return the key of `model.toml` with which a user sets the unknown height, the unknown width,
    or both ("size"). A height or width of 0 is unknown."""
    if height:
        return "width"
    return "height" if width else "size"


def _pad(
    source: str, crop_mode: CropMode, channels: ChannelOrder, colour: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the colour of the padding around images, converted to the model's number of channels.
    Raises PreprocessingError if `crop_mode` does not pad images."""
    if colour and crop_mode is not CropMode.PAD:
        raise PreprocessingError(
            f"{source}: pad sets the colour around images, but crop_mode ="
            f' "{crop_mode.value}" adds nothing around them; remove pad, or set crop_mode = "pad"'
        )
    count = _channel_count(channels)
    if len(colour) in (0, count):
        return colour
    if count > 1:
        return colour * count
    red, green, blue = colour
    return (round(0.299 * red + 0.587 * green + 0.114 * blue),)


def _as_bytes(
    asked: Preprocessing, model_path: Path, given: Mapping[str, Any], unread: list[str]
) -> Preprocessing:
    """Return a copy of the preprocessing that leaves pixels unnormalised.

    Add lines to `unread` that name a guess and the keys that are not used, and log the keys.
    """
    count = _channel_count(asked.channels)
    preprocessing = replace(
        asked, scale=1.0, mean=(0.0,) * count, std=(1.0,) * count, guess="", as_bytes=True
    )
    if count > 1 and {"preset", "channels"}.isdisjoint(given):
        unread.append(f"the order of the channels, {asked.channels.value}, is a guess")
    keys = [key for key in _NORMALISING if key in given or "preset" in given]
    others = [key for key in keys if getattr(asked, key) != getattr(preprocessing, key)]
    if others:
        are = "is" if len(others) == 1 else "are"
        line = f"its input takes uint8 pixels as they are, so {', '.join(others)} {are} not used"
        _log.warning("%s: %s", model_path.name, line)
        unread.append(line)
    return preprocessing


def _sides(shape: Sequence[int], given: Mapping[str, Any]) -> tuple[int, int]:
    """Return the height and width of a model's input, with 0 for an unknown size."""
    spatial = shape[:-1] if _layout(shape, given) is Layout.NHWC else shape[1:]
    return spatial[-2], spatial[-1]


def _layout(shape: Sequence[int], given: Mapping[str, Any]) -> Layout:
    return given.get("layout") or _guess_layout(shape)


def _resized(height: int, width: int, crop_pct: float) -> int:
    """Return the size to which the shorter side is resized before the crop, rounded down as in
    timm."""
    return math.floor(max(height, width) / crop_pct)


def _description_of(model_path: Path) -> Path | None:
    return next((path for path in descriptions_of(model_path) if path.is_file()), None)


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        text = "Invalid value" in str(error)
        hint = '; text needs quotes, as in preset = "imagenet"' if text else ""
        raise PreprocessingError(f"{path} cannot be read: {error}{hint}") from error


def _known(input_shape: Sequence[int | None]) -> tuple[int, ...]:
    """Return the shape, with 0 for each unknown size."""
    if len(input_shape) not in (3, 4):
        raise PreprocessingError(
            f"the model's input has the shape {_shown(input_shape)}; besides the batch, it must"
            " have three axes for images (channels, height, width) or four axes for clips"
            " (channels, frames, height, width)"
        )
    return tuple(max(side or 0, 0) for side in input_shape)


def _guess_layout(shape: Sequence[int]) -> Layout:
    if shape[0] not in (1, 3) and shape[-1] in (1, 3):
        return Layout.NHWC
    return Layout.NCHW


def _refuse_two_meanings(shape: Sequence[int], given: Mapping[str, Any]) -> None:
    """Raise PreprocessingError if the shape is ambiguous, because clips of grey frames and images
    with a superfluous axis of size 1 have this shape."""
    if len(shape) == 4 and shape[0] == 1 and 3 in (shape[1], shape[-1]) and "frames" not in given:
        raise PreprocessingError(
            f"the model takes N×{_shown(shape)}, which may be clips of grey frames, or images with"
            f" a superfluous axis of size 1. For clips, set frames = {shape[1] or 16} in"
            f" model.toml. For images, export the model with N×{_shown(shape[1:])}"
        )


def _frames(
    source: str, depth: Sequence[int], given: int | None, shape: Sequence[int]
) -> int | None:
    """Return the number of frames of a clip, or None if the model takes images."""
    if not depth:
        if given is not None:
            raise PreprocessingError(
                f"{source}: frames = {given}, but the model takes images of {_shown(shape)};"
                " remove frames"
            )
        return None
    frames = given or depth[0]
    if not frames:
        raise PreprocessingError(
            f"the model takes clips of {_shown(shape)}. This shape leaves the number of frames"
            " open. Set frames as in training, for example frames = 16, in model.toml"
        )
    return frames


def _sampling(source: str, depth: Sequence[int], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys in `given` that select the frames of a clip. Raises PreprocessingError if
    the model takes images, or if only one of two related keys is set."""
    found = {key: given[key] for key in ("sampling", "stride") if key in given}
    if found and not depth:
        raise PreprocessingError(
            f"{source}: remove {' and '.join(found)}, because the model takes images, not clips"
        )
    strides = found.get("sampling") is Sampling.STRIDE
    if strides != ("stride" in found):
        missing = 'sampling = "stride"' if "stride" in found else "stride = 2, or another number"
        raise PreprocessingError(f"{source}: sampling by a stride needs two keys; add {missing}")
    return found


def _guessed(channels: int) -> str:
    """Return the name of the preset for a model that nothing else describes."""
    return "digits" if channels == 1 else "imagenet"


def _add_guessed(channels: int, given: Mapping[str, object], sources: dict[str, list[str]]) -> None:
    """Add to `sources` the keys that a guessed preset supplies beside the keys that are set."""
    if missing := _missing_choices(given):
        sources[f"the preset {_guessed(channels)}"] = missing


def _missing_choices(given: Mapping[str, object]) -> list[str]:
    return [key for key in ("channels", "scale", "mean", "std") if key not in given]


def _say_guess(model_path: Path, name: str, given: Mapping[str, object], channels: int) -> None:
    guessed = _missing_choices(given)
    others = (
        '"grey-raw" (pixels from 0 to 255), "grey-inception" (-1 to 1) or "mnist"'
        if channels == 1
        else '"unit" (pixels from 0 to 1), "raw" (0 to 255) or torchvision\'s weights,'
        ' "resnet50.IMAGENET1K_V2"'
    )
    if guessed:
        _log.warning(
            "%s has no settings for %s; the preset %r, a guess from the model's input, supplies"
            " them. If answers are wrong, set %s in %s, or choose another preset there, such as"
            " preset = %s",
            model_path,
            ", ".join(guessed),
            name,
            " and ".join((", ".join(guessed[:-1]), guessed[-1])) if guessed[1:] else guessed[0],
            description_to_write(model_path),
            others,
        )


def _unlikely_mean(
    model_path: Path, given: Mapping[str, object], p: Preprocessing
) -> Iterator[str]:
    """Yield a warning, and log it, if a given mean is for other pixels than `scale` gives."""
    if p.as_bytes or "mean" not in given:
        return
    most = 255 * p.scale
    if min(p.mean) > most:
        right = "set scale = 1, or divide mean and std by 255"
    elif 0 < max(p.mean) <= 1 <= p.scale and max(p.std) <= 1:
        right = "set scale = 0.00392156862745098 (1/255), or multiply mean and std by 255"
    else:
        return
    line = (
        f"mean = {[*p.mean]} is not for pixels from 0 to {most:g}, which scale = {p.scale:g} gives;"
        f" {right}"
    )
    _log.warning("%s: %s", model_path, line)
    yield line


def _say_unlabelled(model_path: Path, unread: list[str]) -> None:
    """Warn that the model has no labels, with each line of `unread` as a reason. First, add a line
    to `unread` with the files next to the model that may contain labels."""
    names = unread_beside(model_path)
    if names:
        are, one = ("is", "it") if len(names) == 1 else ("are", "one of them")
        unread.append(
            f"{', '.join(names)} {are} not read; if {one} lists the labels, pass it as --labels, or"
            f' set labels = "{names[0]}" in {description_to_write(model_path).name}'
        )
    for line in unread:
        _log.warning("%s has no labels: %s", model_path.name, line)


def _channel_count(channels: ChannelOrder) -> int:
    return 1 if channels is ChannelOrder.GREY else 3


def _check(source: str, preprocessing: Preprocessing, shape: Sequence[int]) -> None:
    p = preprocessing
    for key, entries in (("mean", p.mean), ("std", p.std)):
        if len(entries) != _channel_count(p.channels):
            raise PreprocessingError(
                f"{source}: {key} has length {len(entries)}, but channels = "
                f'"{p.channels.value}" needs {_channel_count(p.channels)}'
            )
    if p.crop_mode is not CropMode.PAD and p.resize < max(p.height, p.width):
        raise PreprocessingError(
            f"{source}: resize = {p.resize} is smaller than the crop of {p.height}×{p.width}; "
            f"it must be at least {max(p.height, p.width)}"
        )
    if any(known not in (0, side) for known, side in zip(shape, p.input_shape, strict=True)):
        kind = "images" if p.frames is None else "clips"
        raise PreprocessingError(
            f"{source} gives {kind} of {_shown(p.input_shape)} ({p.layout.value}, "
            f"{p.channels.value}), but the model takes {_shown(shape)}; change size, layout or"
            f" channels{_presets_for(p, shape)}"
        )


def _presets_for(p: Preprocessing, shape: Sequence[int]) -> str:
    """Return the end of an error message that lists the presets for the model's channels. Return ""
    if the number of channels is right."""
    channels = shape[-1] if p.layout is Layout.NHWC else shape[0]
    if channels not in (1, 3) or channels == _channel_count(p.channels):
        return ""
    names = [
        name for name, preset in PRESETS.items() if _channel_count(preset.channels) == channels
    ]
    kind = "grey" if channels == 1 else "colour"
    return f", or use a preset for {kind} images: {', '.join(names)}"


def _shown(shape: Sequence[int | None]) -> str:
    return "×".join(str(side) if side else "?" for side in shape) or "()"
