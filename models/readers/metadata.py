"""Reads information about labels and pixels from the `metadata_props` in a model file.

key                                                 written by
names, imgsz, task                                  Ultralytics
Image.BitmapPixelFormat, Image.NominalPixelRange    Custom Vision, Windows ML
model_info ...                                      OpenVINO's Model API
labels, classes, id2label, mean, std, ...           other programs
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from models.readers.labels import LABEL_KEYS, labels_in_text
from models.readers.reading import Keys, Reading, is_side
from models.readers.written_pixels import last_part, written_pixels

# The most characters of one key's value. 20,000 labels take a quarter of that.
_LONGEST = 2**21

# Keys whose value may be an object with labels and other entries.
_OBJECTS = ("config", "metadata", "model_config")

# Names of this task.
_CLASSIFY = {"classify", "classification", "image-classification", "image classification"}

# The prefix of OpenVINO's Model API, in which spaces separate labels.
_MODEL_INFO = "model_info "

# Keys and values of Windows ML, in lower case, because Windows ML ignores case.
_FORMAT = "image.bitmappixelformat"
_RANGE = "image.nominalpixelrange"
_NUMBERS = ("channels", "scale", "mean", "std")
_GAMMA = "image.colorspacegamma"
_CHANNELS = {"rgb8": "rgb", "bgr8": "bgr", "gray8": "grey"}
# The scale and the mean that convert pixels from 0 to 255 to the range.
_RANGES = {
    "nominalrange_0_255": (1.0, 0.0),
    "normalized_0_1": (1 / 255, 0.0),
    "normalized_1_1": (1 / 127.5, 1.0),
    "nominalrange_16_235": (219 / 255, -16.0),
}


def read_metadata(
    path: Path,
    metadata: Mapping[str, str],
    sides: tuple[int, int],
    channels: int = 3,
    *,
    normalises: bool = False,
) -> Reading | None:
    """Read information about labels and pixels from the metadata of the model in `path`, or return
    None if there is none.

    `sides` are the height and width of the model's input, with 0 for an unknown size. `normalises`
    tells whether the model's first operations normalise pixels. If so, a mean and std in the
    metadata are assumed to describe these operations, and are not used.
    """
    said = {key.strip().lower(): value for key, value in metadata.items()}
    names = _labels(said)
    size = _size(said.get("imgsz", ""))
    written = written_pixels(said, channels)
    is_own = "names" in said and "imgsz" in said  # written by Ultralytics
    task = said.get("task", "").strip().lower()
    pixels: Keys = {}
    doubts = list(written.doubts)
    if is_own and task and size is not None:  # other tasks use the same range
        pixels = _of_ultralytics(size, said.get("channels", "3").strip())
    elif {_FORMAT, _RANGE} & said.keys():
        pixels = _of_windows(said)
    if written.keys and normalises:
        doubts.append(
            "its metadata have a mean or std, but its first operations already normalise pixels:"
            " the metadata are assumed to describe these operations, and are not used"
        )
    elif pixels and written.keys:
        if any(pixels.get(key) != value for key, value in written.keys.items() if key in _NUMBERS):
            doubts.append("its mean and std contradict its other keys on pixels, and are not used")
    elif written.keys:
        pixels = written.keys
    if is_own and task and task not in _CLASSIFY:
        doubts.append(f"its task is {task!r:.60}, but Convoy runs only classifiers")
    if size is not None and any(
        own not in (0, side) for own, side in zip(sides, size, strict=True)
    ):
        shown = "×".join(map(str, size))
        doubts.append(f"imgsz is {shown}, but the model takes {sides[0] or '?'}×{sides[1] or '?'}")
        size = None
    is_open = size is not None and 0 in sides
    ignored = (*_unused(said, names, pixels, is_own=is_own), *written.unread)
    if not (names or pixels or doubts or is_open or ignored or _is_multi_label(said)):
        return None
    return Reading(
        path,
        pixels=partial(dict, pixels) if pixels else None,
        labels=partial(tuple, names[1]) if names else None,
        serving={
            **({"height": size[0], "width": size[1]} if size and is_open else {}),
            **({"output": "sigmoid"} if _is_multi_label(said) else {}),
        },
        ignored=ignored,
        doubts=tuple(doubts),
    )


def _labels(said: Mapping[str, str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the first key that lists labels, together with these labels, or None."""
    by_name = {last_part(key): key for key in said}
    for name in (*LABEL_KEYS, *_OBJECTS):
        key = by_name.get(name, "")
        text = said.get(key, "")
        if key.startswith(_MODEL_INFO) and not set("[{,;") & set(text):
            text = "\n".join(text.split())
        if text and len(text) <= _LONGEST and (labels := labels_in_text(text)):
            return key, labels
    return None


def _is_multi_label(said: Mapping[str, str]) -> bool:
    return said.get(f"{_MODEL_INFO}multilabel", "").strip().lower() == "true"


def _size(text: str) -> tuple[int, int] | None:
    """Return height and width from a text such as "224" or "[224, 320]", or None for other text."""
    numbers = text.strip().strip("[]()").replace(",", " ").split()[:3]
    if not all(number.isdecimal() and len(number) < 6 for number in numbers):
        return None
    sides = [int(number) for number in numbers]
    if len(sides) not in (1, 2) or not all(map(is_side, sides)):
        return None
    return sides[0], sides[-1]


def _of_ultralytics(size: tuple[int, int], channels: str) -> Keys:
    """Return the preprocessing of Ultralytics for a network that takes images of `size`.

    If `size` is a square, an image's shorter side is resized and the centre is cropped. Otherwise
    both sides are resized.
    """
    grey = channels == "1"
    return {
        "channels": "grey" if grey else "rgb",
        "scale": 1 / 255,
        "mean": [0] if grey else [0, 0, 0],
        "std": [1] if grey else [1, 1, 1],
        "crop_mode": "crop" if size[0] == size[1] else "squash",
        "crop_pct": 1.0,
        "interpolation": "bilinear",
    }


def _of_windows(said: Mapping[str, str]) -> Keys:
    """Return the preprocessing that the keys of Windows ML describe.

    Images are resized as in Custom Vision's example.
    """
    channels = _CHANNELS.get(said.get(_FORMAT, "").strip().lower())
    values = _RANGES.get(said.get(_RANGE, "").strip().lower())
    count = 1 if channels == "grey" else 3
    keys: Keys = {}
    if channels:
        keys |= {"channels": channels}
    if values:
        keys |= {"scale": values[0], "mean": [values[1]] * count, "std": [1] * count}
    return keys and keys | {"crop_mode": "squash", "crop_pct": 1.0, "interpolation": "bicubic"}


def _unused(
    said: Mapping[str, str],
    names: tuple[str, tuple[str, ...]] | None,
    pixels: Keys,
    *,
    is_own: bool,
) -> Iterator[str]:
    """Yield the metadata keys about labels or pixels that no reader uses."""
    if names is None:
        yield from (key for key in LABEL_KEYS if key in said)
    if is_own and "scale" not in pixels and "task" not in said:
        yield "imgsz without a task"
    for key, known in ((_FORMAT, "channels"), (_RANGE, "scale")):
        if said.get(key) and known not in pixels:
            yield f"{key} = {said[key]!r:.60}"
    if said.get(_GAMMA, "srgb").strip().lower() != "srgb":
        yield f"{_GAMMA} = {said[_GAMMA]!r:.60}"
