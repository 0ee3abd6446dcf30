"""Clips: the frames that a model receives from each file. Broken files cause only errors."""

import io
import pickle
import random
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from models.preprocessing import PRESETS, Preprocessing, Sampling
from service.errors import (
    BadRequestError,
    ImageError,
    PayloadTooLargeError,
    ServiceError,
    TooManyImagesError,
    UnsupportedMediaTypeError,
)
from service.images.clip import MOST_FRAMES, Frames, clips_of, prepare_clip
from service.images.prepare import ImageLimits, prepare_image
from tests.support.clips.videos import video
from tests.support.images.files import encode, scene

GREY = replace(PRESETS["digits"].at(8, 8), frames=4)
COLOUR = replace(PRESETS["raw"].at(24, 24), frames=4)
LIMITS = ImageLimits()


def level(number: int) -> Image.Image:
    return Image.new("L", (10, 8), 12 * number + 3)


def animated(images: Sequence[Image.Image], kind: str) -> bytes:
    options = {"lossless": True} if kind == "WEBP" else {}
    frames = [image.convert("RGB") for image in images] if kind == "WEBP" else list(images)
    return encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)


def archive(
    images: Sequence[Image.Image], method: int = zipfile.ZIP_DEFLATED, name: str = "f{}.png"
) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as opened:
        opened.writestr("__MACOSX/f0.png", b"no image")
        opened.writestr("folder/", b"")
        opened.writestr("Z.bin", b"nameless")
        for number in reversed(range(len(images))):
            opened.writestr(name.format(number), encode(images[number], "PNG"))
    return file.getvalue().replace(b"Z.bin", b"\0.bin")  # names end where they have a zero


FORMS: Mapping[str, Callable[[Sequence[Image.Image]], bytes | Frames]] = {
    "images": lambda images: clips_of([encode(image, "PNG") for image in images])[0],
    "GIF": lambda images: animated(images, "GIF"),
    "WebP": lambda images: animated(images, "WEBP"),
    "PNG": lambda images: animated(images, "PNG"),
    "ZIP": archive,
    "stored ZIP": lambda images: archive(images, zipfile.ZIP_STORED),
    "MP4": video,
    "WebM": lambda images: video(images, "webm", "libvpx-vp9"),
}
LOSSY = ("MP4", "WebM")  # by a level, where colours are converted


def decode(
    clip: bytes | Frames, preprocessing: Preprocessing = GREY, limits: ImageLimits = LIMITS
) -> np.ndarray:
    return np.asarray(prepare_clip(clip, preprocessing, limits).run())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("sampling", "stride", "expected"),
    [
        (Sampling.UNIFORM, 1, [1, 4, 7, 10]),
        (Sampling.FIRST, 1, [0, 1, 2, 3]),
        (Sampling.STRIDE, 3, [0, 3, 6, 9]),
        (Sampling.STRIDE, 5, [0, 5, 10, 11]),
    ],
)
def test_frames_are_chosen_as_the_preprocessing_says(
    form: str, sampling: Sampling, stride: int, expected: list[int]
) -> None:
    preprocessing = replace(GREY, sampling=sampling, stride=stride)
    clip = decode(FORMS[form]([level(number) for number in range(12)]), preprocessing)
    assert clip.shape == preprocessing.image_shape
    levels = [12 * number + 3 for number in expected]
    assert clip[:, 4, 4, 0].tolist() == pytest.approx(levels, abs=2 if form in LOSSY else 0)


@pytest.mark.parametrize("form", FORMS)
def test_frames_of_a_shorter_clip_are_repeated(form: str) -> None:
    clip = decode(FORMS[form]([level(2), level(9)]))
    levels = [27, 27, 111, 111]
    assert clip[:, 4, 4, 0].tolist() == pytest.approx(levels, abs=2 if form in LOSSY else 0)


@pytest.mark.parametrize("form", ["WebP", "PNG", "ZIP", "images"])
def test_each_frame_is_what_a_still_image_of_it_is(form: str) -> None:
    """GIF is left out, because its frames have at most 256 colours."""
    images = [scene(60, 40, seed) for seed in range(4)]
    still = replace(COLOUR, frames=None)
    expected = [prepare_image(encode(image, "PNG"), still, LIMITS).run() for image in images]
    np.testing.assert_array_equal(decode(FORMS[form](images), COLOUR), expected)


def test_the_image_of_a_png_that_is_no_frame_of_its_animation_is_left_out() -> None:
    first, *others = [level(number) for number in (20, 1, 2, 3, 4)]
    file = encode(first, "PNG", save_all=True, append_images=others, default_image=True)
    assert decode(file)[:, 4, 4, 0].tolist() == [15, 27, 39, 51]


def test_a_clip_can_be_decoded_in_another_process() -> None:
    images = [level(number) for number in range(12)]
    for make in FORMS.values():
        decoding = prepare_clip(make(images), GREY, LIMITS)
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(decoding.run, 5, buffer_callback=buffers.append)
        again = pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])
        np.testing.assert_array_equal(again(), decoding.run())


def test_numbers_in_the_names_of_a_zip_count_as_numbers() -> None:
    images = [level(number) for number in range(12)]
    for name in ("f{}.png", "scene 2/{}.png", "a{}b3.png"):
        clip = decode(archive(images, name=name), replace(GREY, sampling=Sampling.FIRST))
        assert clip[:, 4, 4, 0].tolist() == [3, 15, 27, 39]


def test_stills_are_one_clip_and_other_files_one_each() -> None:
    images = [level(number) for number in range(4)]
    stills = [encode(image, kind) for image in images for kind in ("PNG", "JPEG", "WEBP")]
    (clip,) = clips_of(stills)
    assert isinstance(clip, Frames)
    assert len(clip) == sum(map(len, stills))
    whole = [animated(images, kind) for kind in ("GIF", "WEBP", "PNG")]
    whole += [archive(images), video(images), video(images, "webm", "libvpx-vp9")]
    assert clips_of(whole) == whole
    with pytest.raises(BadRequestError, match="1 of 2 files are still images"):
        clips_of([stills[0], whole[0]])


# --- what is refused ------------------------------------------------------------------------------


def images(count: int = 3) -> list[Image.Image]:
    return [level(number) for number in range(count)]


def patched(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def many_entries() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for number in range(MOST_FRAMES + 1):
            opened.writestr(str(number), b"")
    return file.getvalue()


def bomb() -> bytes:
    """Return a ZIP whose entries inflate a thousandfold."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        for number in range(4):
            opened.writestr(f"{number}.png", bytes(10**6))
    return file.getvalue()


def with_method(method: int) -> bytes:
    data = archive(images())
    place = data.index(b"PK\x01\x02")
    while place > 0:
        data = patched(data, place + 10, struct.pack("<H", method))
        place = data.find(b"PK\x01\x02", place + 4)
    return data


def with_password() -> bytes:
    data = archive(images())
    place = data.index(b"PK\x01\x02")
    while place > 0:
        data = patched(data, place + 8, struct.pack("<H", 1))
        place = data.find(b"PK\x01\x02", place + 4)
    return data


def end_of(data: bytes) -> int:
    return data.rindex(b"PK\x05\x06")


def with_size_of_directory(size: int) -> bytes:
    data = archive(images())
    return patched(data, end_of(data) + 12, struct.pack("<I", size))


def gif(*blocks: bytes) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", 10, 8, 0, 0, 0) + b"".join(blocks) + b";"


def gif_image(x: int = 0, width: int = 10) -> bytes:
    return b"," + struct.pack("<HHHHB", x, 0, width, 8, 0) + b"\x02\x01\x00\x00"


REFUSED: Mapping[str, tuple[Callable[[], bytes | Frames], type[ServiceError], str]] = {
    "one image": (
        lambda: clips_of([encode(level(1), "PNG")])[0],
        *(BadRequestError, "a single still image is not a clip"),
    ),
    "a GIF of one frame": (lambda: gif(gif_image()), BadRequestError, "single still image"),
    "a still JPEG": (lambda: encode(level(1), "JPEG"), UnsupportedMediaTypeError, "a single still"),
    "nothing": (lambda: b"", ServiceError, "the clip is empty"),
    "text": (lambda: b"a clip", UnsupportedMediaTypeError, r"the text .a clip.; send the frames"),
    "a broken frame": (
        lambda: Frames([encode(level(1), "PNG"), b"no image"]),
        *(UnsupportedMediaTypeError, "frame 2: this is the text 'no image'"),
    ),
    "many images": (
        lambda: Frames([b"x"] * (MOST_FRAMES + 1)),
        *(TooManyImagesError, "1025 frames; at most 1024"),
    ),
    "many entries": (many_entries, TooManyImagesError, "1025 frames; at most 1024"),
    "an empty archive": (
        lambda: archive([], name=""),
        *(BadRequestError, "the ZIP archive contains no images"),
    ),
    "a bomb": (bomb, PayloadTooLargeError, "bytes uncompressed; at most"),
    "an archive without its end": (
        lambda: archive(images())[:-30],
        *(BadRequestError, "it has no directory"),
    ),
    "a long directory": (
        lambda: with_size_of_directory(2**30),
        *(TooManyImagesError, "directory of 1073741824 bytes"),
    ),
    "a directory that is none": (
        lambda: with_size_of_directory(7),
        *(BadRequestError, "cannot be read"),
    ),
    "another compression": (lambda: with_method(12), BadRequestError, "not compressed with defl"),
    "a password": (with_password, BadRequestError, "is encrypted"),
    "a name that is not the one in the directory": (
        lambda: archive(images(), name="f" * 900 + "{}.png").replace(b"f" * 900, b"g" * 900, 3),
        *(BadRequestError, r"cannot be read \(File name in directory 'f{96}\)"),
    ),
    "a GIF without frames": (gif, ServiceError, "it has no frames"),
    "a GIF that ends early": (lambda: gif(gif_image())[:-3], ServiceError, "ends too early"),
    "a GIF with a frame outside": (
        lambda: gif(gif_image(x=1), gif_image()),
        *(ServiceError, "a frame lies outside the image"),
    ),
    "a GIF with an unknown block": (lambda: gif(b"\x07"), ServiceError, "unknown type 7"),
    "a GIF of tiny sub-blocks": (
        lambda: gif(b"!\xfe" + b"\x01x" * 10_000 + b"\0"),
        *(ServiceError, "more sub-blocks than an image"),
    ),
    "a GIF of nothing": (
        lambda: patched(gif(gif_image()), 6, bytes(4)),
        *(ServiceError, "width or height"),
    ),
    "a GIF of much": (
        lambda: patched(gif(gif_image(), gif_image()), 6, b"\xff\xff\xff\xff"),
        *(PayloadTooLargeError, "65535×65535 pixels"),
    ),
    "many frames of a PNG": (
        lambda: _frames_of_png(5000),
        *(TooManyImagesError, "5000 frames; at most 1024"),
    ),
    "a PNG that says more frames than it has": (
        lambda: _frames_of_png(9),
        *(ServiceError, "cannot be decoded|does not match its header"),
    ),
}


def _frames_of_png(count: int) -> bytes:
    data = animated(images(), "PNG")
    return patched(data, data.index(b"acTL") + 4, struct.pack(">I", count))


@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_clip_is_refused_with_a_reason(case: str) -> None:
    make, kind, says = REFUSED[case]
    with pytest.raises(kind, match=says) as refused:
        decode(make())
    assert len(str(refused.value)) < 400


def test_a_file_of_an_archive_is_inflated_to_no_more_than_its_stated_size() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        for number in range(2):
            opened.writestr(f"{number}.png", bytes(2**24))
    data = file.getvalue()
    place = data.index(b"PK\x01\x02")
    while place > 0:
        data = patched(data, place + 24, struct.pack("<I", 1000))
        place = data.find(b"PK\x01\x02", place + 4)
    tracemalloc.start()
    with pytest.raises(BadRequestError, match=r"cannot be read \(Bad CRC-32"):
        decode(data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**20


def test_what_is_copied_from_a_file_to_decode_it_is_counted() -> None:
    stills = [encode(image, "BMP") for image in images(4)]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        for number, still in enumerate(stills):
            opened.writestr(f"{number}.bmp", still)
    inflated = prepare_clip(file.getvalue(), GREY, LIMITS).copied
    assert inflated == sum(map(len, stills)) > len(file.getvalue())
    film = video(images(4))
    assert 0 < prepare_clip(film, GREY, LIMITS).copied < len(film)
    assert prepare_clip(animated(images(4), "GIF"), GREY, LIMITS).copied == 0


def test_all_frames_together_have_a_limit_of_pixels() -> None:
    few = ImageLimits(max_pixels=100, max_passes=3)
    for make in FORMS.values():
        assert decode(make(images(3)), GREY, few).shape == GREY.image_shape
        with pytest.raises(PayloadTooLargeError, match=r"at most 0\.0003 megapixels"):
            decode(make(images(12)), replace(GREY, frames=12), few)
    with pytest.raises(PayloadTooLargeError, match="bytes, more than the 50 allowed"):
        decode(animated(images(), "GIF"), GREY, ImageLimits(max_bytes=50))


@pytest.mark.parametrize("form", FORMS)
def test_exactly_as_many_pixels_as_are_allowed_are_taken(form: str) -> None:
    clip = FORMS[form](images(3))
    assert decode(clip, GREY, ImageLimits(max_pixels=80, max_passes=3)).shape == GREY.image_shape
    with pytest.raises(PayloadTooLargeError, match=r"at most 0\.00016 megapixels"):
        decode(clip, GREY, ImageLimits(max_pixels=80, max_passes=2))


@pytest.mark.parametrize("form", FORMS)
def test_a_clip_has_a_limit_of_seconds_by_the_estimate_for_all_its_frames(form: str) -> None:
    eight = replace(GREY, frames=8)
    one, all_s = (
        prepare_clip(FORMS[form](images(count)), eight, LIMITS).cost.seconds for count in (2, 8)
    )
    assert all_s == pytest.approx(4 * one, rel=0.6 if form in LOSSY else 0.01)
    just = ImageLimits(max_clip_s=all_s)
    assert decode(FORMS[form](images(8)), eight, just).shape == eight.image_shape
    with pytest.raises(PayloadTooLargeError, match=r"--max-clip-s.*fewer or smaller frames"):
        decode(FORMS[form](images(8)), eight, ImageLimits(max_clip_s=all_s * 0.99))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_small_frames_may_be_as_many_as_others_and_each_takes_time(kind: str) -> None:
    frames = [level(number % 20) for number in range(MOST_FRAMES + 1)]
    most = prepare_clip(animated(frames[:-1], kind), GREY, LIMITS)
    assert most.run().shape == GREY.image_shape
    assert most.cost.seconds > 0.05  # as measured
    with pytest.raises(TooManyImagesError, match="1025 frames; at most 1024"):
        prepare_clip(animated(frames, kind), GREY, LIMITS)


def test_files_of_an_archive_that_overlap_are_refused() -> None:
    """To inflate the same megabytes again and again would take seconds."""
    file = archive([scene(60, 40, seed) for seed in range(4)], zipfile.ZIP_STORED)
    with zipfile.ZipFile(io.BytesIO(file)) as opened:
        entries = [entry for entry in opened.infolist() if entry.filename.startswith("f")]
        place, sizes = opened.start_dir, [entry.file_size for entry in entries]
    assert decode(file).shape == GREY.image_shape
    while (place := file.find(b"PK\x01\x02", place)) > 0:  # each as long as all
        file = patched(file, place + 20, struct.pack("<II", sum(sizes), sum(sizes)))
        place += 4
    with pytest.raises(BadRequestError, match="files of the ZIP archive overlap"):
        prepare_clip(file, GREY, LIMITS)


def gif_of(frames: int, coded: bytes) -> bytes:
    """Return frames of 4000×4000, each with the same coded bytes."""
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 4000, 4000, 0) + b"\x08"
    blocks = b"".join(bytes([len(part)]) + part for part in wrapped(coded)) + b"\0"
    screen = b"GIF89a" + struct.pack("<HHBBB", 4000, 4000, 0x80, 0, 0) + bytes(6)
    return screen + (frame + blocks) * frames + b"\x3b"


def wrapped(coded: bytes) -> list[bytes]:
    return [coded[at : at + 255] for at in range(0, len(coded), 255)]


def png_of(frames: int, coded: bytes) -> bytes:
    """Return frames of 4000×4000 black or white pixels, each with the same coded bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        code = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", code)

    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", 4000, 4000, 1, 0, 0, 0, 0))]
    parts.append(chunk(b"acTL", struct.pack(">II", frames, 0)))
    for number in range(frames):
        place = struct.pack(">IIIIIHHBB", number, 4000, 4000, 0, 0, 1, 25, 0, 0)
        parts.append(chunk(b"fcTL", place))
        data = (b"IDAT", coded) if number == 0 else (b"fdAT", bytes(4) + coded)
        parts.append(chunk(*data))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def webp_of(frames: int, coded: bytes) -> bytes:
    """Return frames of 4000×4000, each with the same coded bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return kind + struct.pack("<I", len(data)) + data + bytes(len(data) & 1)

    side = (3999).to_bytes(3, "little")
    frame = chunk(b"ANMF", bytes(6) + side * 2 + bytes(4) + chunk(b"VP8L", coded))
    canvas = chunk(b"VP8X", b"\2\0\0\0" + side * 2) + chunk(b"ANIM", bytes(6))
    data = b"WEBP" + canvas + frame * frames
    return b"RIFF" + struct.pack("<I", len(data)) + data


@pytest.mark.parametrize(
    ("make", "least_bytes"),
    [(gif_of, 16_000_000 // 2730), (png_of, 501 * 4000 // 1032), (webp_of, 16_000_000 // 2**15)],
)
@pytest.mark.parametrize("frames", [2, 20])
def test_each_frame_needs_the_bytes_that_its_pixels_take_at_least(
    make: Callable[[int, bytes], bytes], least_bytes: int, frames: int
) -> None:
    long = ImageLimits(max_clip_s=60)
    prepare_clip(make(frames, bytes(least_bytes)), COLOUR, long)
    with pytest.raises(ImageError, match=f"4000×4000 pixels need at least {least_bytes} bytes"):
        prepare_clip(make(frames, bytes(least_bytes - 1)), COLOUR, long)


@pytest.mark.parametrize("form", FORMS)
def test_only_pixels_or_the_clients_errors_come_of_hurt_clips(form: str) -> None:
    rng = random.Random(7)
    good = FORMS[form](images(5))
    files = list(good.files) if isinstance(good, Frames) else [good]
    refused = 0
    for _ in range(150):
        place = rng.randrange(len(files))
        data = bytearray(files[place])
        for _ in range(rng.choice((1, 1, 3, 10))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        hurt = bytes(data)
        clip = Frames([*files[:place], hurt, *files[place + 1 :]]) if files[1:] else hurt
        try:
            assert decode(clip).shape == GREY.image_shape
        except ServiceError:
            refused += 1
    assert refused > 30
