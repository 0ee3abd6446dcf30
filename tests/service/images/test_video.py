"""Videos: the facts that containers state, FFmpeg's frames, and how little of a bad file FFmpeg
receives."""

import io
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from models.preprocessing import PRESETS, Sampling
from service.engine.process_pool import ProcessPool
from service.errors import (
    DecoderLostError,
    ImageError,
    PayloadTooLargeError,
    ServiceError,
    TooManyImagesError,
    UnsupportedMediaTypeError,
)
from service.images import clip
from service.images.clip import MOST_FRAMES, prepare_clip
from service.images.decode_pool import in_process
from service.images.film import Film
from service.images.mp4 import parse_mp4
from service.images.prepare import ImageLimits
from service.images.signatures import WEBM
from service.images.video import Container, Video
from service.images.webm import parse_webm
from tests.support import PATIENCE_S
from tests.support.clips.videos import video
from tests.support.images.files import scene

FRAMES, WIDTH, HEIGHT = 12, 64, 48
MEANING = replace(PRESETS["raw"].at(HEIGHT, WIDTH), resize=HEIGHT, frames=4)
LIMITS = ImageLimits()


@cache
def scenes() -> Sequence[Image.Image]:
    return [scene(WIDTH, HEIGHT, seed) for seed in range(FRAMES)]


KINDS: Mapping[str, Callable[[Sequence[Image.Image]], bytes]] = {
    "MP4 of H.264": video,
    "MP4 of H.264 with frames out of order": lambda frames: video(frames, bf="3", preset="medium"),
    "MP4 of H.265": lambda frames: video(frames, encoder="libx265"),
    "MP4 of AV1": lambda frames: video(frames, encoder="libsvtav1"),
    "MP4 of VP9": lambda frames: video(frames, encoder="libvpx-vp9"),
    "MP4 with its index first": lambda frames: video(frames, written={"movflags": "faststart"}),
    "MP4 in parts": lambda frames: video(
        frames, written={"movflags": "frag_keyframe+empty_moov"}, g="4"
    ),
    "MP4 in parts of its own base": lambda frames: video(
        frames, written={"movflags": "frag_keyframe+empty_moov+default_base_moof"}, g="4"
    ),
    "MP4 as a recorder streams it": lambda frames: video(
        frames, written={"movflags": "frag_keyframe+empty_moov"}, streamed=True, g="4"
    ),
    "QuickTime": lambda frames: video(frames, "mov"),
    "WebM of VP8": lambda frames: video(frames, "webm", "libvpx"),
    "WebM of VP8 with hidden frames": lambda frames: video(
        frames, "webm", "libvpx", auto_alt_ref="1", lag_in_frames="8", deadline="good"
    ),
    "WebM of VP9": lambda frames: video(frames, "webm", "libvpx-vp9"),
    "WebM of AV1": lambda frames: video(frames, "webm", "libsvtav1"),
    "WebM as a recorder streams it": lambda frames: video(frames, "webm", "libvpx", streamed=True),
    "Matroska of H.264": lambda frames: video(frames, "matroska"),
}


@cache
def file_of(kind: str) -> bytes:
    return KINDS[kind](scenes())


def parse(data: bytes, most_frames: int = MOST_FRAMES) -> Video:
    return (parse_webm if WEBM.begins(data) else parse_mp4)(data, most_frames)


def decode(data: bytes, limits: ImageLimits = LIMITS) -> np.ndarray[Any, Any]:
    return np.asarray(prepare_clip(data, MEANING, limits).run())


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPool]:
    made = ProcessPool(DecoderLostError, bound_s=PATIENCE_S)
    yield made
    made.close()


@pytest.mark.parametrize("kind", KINDS)
def test_coded_frames_are_those_that_ffmpegs_own_reader_finds(kind: str) -> None:
    found = parse(file_of(kind))
    with av.open(io.BytesIO(file_of(kind)), "r") as opened:
        (stream,) = opened.streams.video
        packets = [bytes(packet) for packet in opened.demux(stream) if packet.size]
        assert (found.width, found.height) == (stream.width, stream.height)
        assert [bytes(packet) for packet in found.packets] == packets
        assert bytes(found.setup) == (stream.codec_context.extradata or b"")
    assert found.frames == FRAMES


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_chosen_decoded_and_drawn(kind: str) -> None:
    pixels = decode(file_of(kind))
    expected = np.stack([np.asarray(scenes()[number]) for number in (1, 4, 7, 10)])
    assert pixels.shape == expected.shape
    # Colours are coded at half the resolution.
    assert np.abs(pixels.astype(int) - expected).mean() < 9
    assert np.abs(pixels.mean((1, 2, 3)) - expected.mean((1, 2, 3))).max() < 3


def test_chunks_that_hold_no_frame_of_the_video_are_not_read() -> None:
    data, extra = file_of(H264), bytes(4000)
    longer = data
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stco"):
        place = longer.index(kind) - 4
        (size,) = struct.unpack_from(">I", longer, place)
        longer = patched(longer, kind, -4, struct.pack(">I", size + len(extra)))
    (count,) = struct.unpack_from(">I", longer, place + 12)
    longer = patched(longer, b"stco", 8, struct.pack(">I", count + 1000))
    longer = longer[: place + size] + extra + longer[place + size :]
    assert parse(longer).packets == parse(data).packets


def test_the_configuration_of_a_decoder_has_a_limit() -> None:
    class Some(Container):
        kind = "video"

    container = Some(bytes(9), MOST_FRAMES)
    assert container.video(b"avc1", (1, 1), memoryview(bytes(2**16))).decoder == "h264"
    with pytest.raises(ImageError, match="65537 bytes; at most 65536"):
        container.video(b"avc1", (1, 1), memoryview(bytes(2**16 + 1)))


def test_frames_of_vp8_that_are_not_shown_do_not_count() -> None:
    data = bytearray(file_of("WebM of VP8"))
    hidden = parse(bytes(data)).packets[5]
    place = bytes(data).index(bytes(hidden))
    data[place] &= ~0x10
    found = parse(bytes(data))
    assert (len(found.packets), found.frames) == (FRAMES, FRAMES - 1)
    assert decode(bytes(data)).shape == MEANING.image_shape


# --- rotation ------------------------------------------------------------------------------------


# Where a camera's matrix sends x and y, and what that does to the stored image.
TURNS: Mapping[tuple[int, int, int, int], Image.Transpose | None] = {
    (1, 0, 0, 1): None,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT,
}


@pytest.mark.parametrize("matrix", TURNS)
def test_a_video_is_turned_as_its_camera_was(matrix: tuple[int, int, int, int]) -> None:
    data = bytearray(file_of("MP4 of H.264"))
    header = data.index(b"tkhd") + 4
    a, b, c, d = (value * 0x10000 for value in matrix)
    struct.pack_into(">5i", data, header + 40, a, b, 0, c, d)
    turn = TURNS[matrix]
    stored = scenes()[1]
    expected = stored if turn is None else stored.transpose(turn)
    meaning = replace(MEANING, height=expected.height, width=expected.width)
    meaning = replace(meaning, resize=min(expected.size))
    pixels = np.asarray(prepare_clip(bytes(data), meaning, LIMITS).run())
    assert np.abs(pixels[0].astype(int) - np.asarray(expected)).mean() < 9


# --- bounds --------------------------------------------------------------------------------------


def patched(data: bytes, mark: bytes, at: int, new: bytes) -> bytes:
    place = data.index(mark) + at
    return data[:place] + new + data[place + len(new) :]


def with_size(data: bytes, width: int, height: int) -> bytes:
    """Return an MP4 that declares this size, independent of the size of its frames."""
    return patched(data, b"avc1" + bytes(6), 4 + 24, struct.pack(">HH", width, height))


def box(kind: bytes, *parts: bytes) -> bytes:
    return struct.pack(">I4s", 8 + sum(map(len, parts)), kind) + b"".join(parts)


H264 = "MP4 of H.264"
EBML = WEBM.marks[0]

REFUSED: Mapping[str, tuple[Callable[[], bytes], type[ServiceError], str]] = {
    "no more than a beginning": (lambda: file_of(H264)[:45], ImageError, "has no `moov` box"),
    "an MP4 that ends early": (lambda: file_of(H264)[:-9], ImageError, "MP4 is truncated"),
    "a WebM that ends early": (
        lambda: file_of("WebM of VP9")[:5000],
        *(ImageError, "WebM is truncated"),
    ),
    "no index": (lambda: box(b"ftyp", b"isom"), ImageError, "it has no `moov` box"),
    "no track": (
        lambda: box(b"ftyp", b"isom") + box(b"moov", box(b"mvhd", bytes(100))),
        *(ImageError, "it has no video track"),
    ),
    "sound alone": (
        lambda: file_of(H264).replace(b"vide", b"soun"),
        *(ImageError, "it has no video track"),
    ),
    "a still image in a box": (
        lambda: box(b"ftyp", b"avif") + box(b"meta", bytes(40)),
        *(ImageError, "it has no `moov` box"),
    ),
    "another codec": (
        lambda: video(scenes(), encoder="mpeg4"),
        *(UnsupportedMediaTypeError, "codec 'mp4v'; send H.264, H.265, VP8, VP9 or AV1"),
    ),
    "another codec in Matroska": (
        lambda: video(scenes(), "matroska", "mjpeg", pixels="yuvj420p"),
        *(UnsupportedMediaTypeError, "the unsupported codec 'V_MJPEG'"),
    ),
    "more bits a pixel than are held": (
        lambda: video(scenes(), pixels="yuv444p10le"),
        *(UnsupportedMediaTypeError, "the unsupported pixel format yuv444p10le"),
    ),
    "more pixels than are allowed": (
        lambda: with_size(file_of(H264), 9000, 9000),
        *(PayloadTooLargeError, "9000×9000 pixels, 81 megapixels; at most 25 megapixels"),
    ),
    "no pixels": (
        lambda: with_size(file_of(H264), 0, 48),
        *(ImageError, "its width or height is 0 or missing"),
    ),
    "frames that are smaller than it says": (
        lambda: with_size(file_of(H264), 640, 480),
        *(ImageError, "a frame of the video has 64×48 pixels, but its header says 640×480"),
    ),
    "frames that are larger than it says": (
        lambda: with_size(video([scene(640, 480)] * 3), 64, 48),
        *(ImageError, "frame 1 of the video cannot be decoded"),
    ),
    "one frame": (lambda: video(scenes()[:1]), ServiceError, "a single still image is not a clip"),
    "more frames than are allowed": (
        lambda: patched(file_of(H264), b"stsz", 12, struct.pack(">I", 2**31)),
        *(TooManyImagesError, "has 2147483648 frames or more; at most 1024"),
    ),
    "more frames than it has": (
        lambda: patched(file_of(H264), b"stsz", 12, struct.pack(">I", 1000)),
        *(ImageError, "a table is shorter than its header says"),
    ),
    "chunks of no frame": (
        lambda: patched(file_of(H264), b"stsc", 16, bytes(4)),
        *(ImageError, "its table of chunks"),
    ),
    "a frame that lies outside": (
        lambda: patched(file_of(H264), b"stco", 12, b"\xff\xff\xff\xff"),
        *(ImageError, "MP4 is truncated"),
    ),
    "a frame of no bytes": (
        lambda: patched(file_of(H264), b"stsz", 16, bytes(4)),
        *(ImageError, "one of its frames has no bytes"),
    ),
    "a frame that is none": (
        lambda: patched(file_of(H264), b"stco", 12, bytes(4)),
        *(ImageError, r"frame 1 of the video cannot be decoded \(Invalid data found"),
    ),
    "a frame before the file": (
        lambda: patched(file_of("MP4 in parts"), b"trun", 12, struct.pack(">i", -(2**30))),
        *(ImageError, "one of its frames is before the beginning of the file"),
    ),
    "tiny boxes": (
        lambda: box(b"ftyp", b"isom") + box(b"free") * 100_000,
        *(ImageError, "more elements than a video of its size"),
    ),
    "tiny elements": (
        lambda: EBML + b"\x80" + b"\xec\x80" * 100_000,
        *(ImageError, "more elements than a video of its size"),
    ),
    "a box shorter than its header": (
        lambda: box(b"ftyp", b"isom") + struct.pack(">I4s", 3, b"free") + bytes(9),
        *(ImageError, "a box is shorter than its header"),
    ),
    "a WebM of no track": (
        lambda: EBML + b"\x80\x18\x53\x80\x67\xff\x16\x54\xae\x6b\x80",
        *(ImageError, "it has no video track"),
    ),
    "a number of no bytes": (lambda: EBML + bytes(20), ImageError, "WebM is truncated"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_video_is_refused_with_a_reason(case: str) -> None:
    make, kind, says = REFUSED[case]
    with pytest.raises(kind, match=says):
        decode(make())


def test_all_frames_up_to_the_last_that_is_wanted_have_a_limit_of_pixels() -> None:
    few = ImageLimits(max_pixels=WIDTH * HEIGHT, max_passes=10)
    with pytest.raises(PayloadTooLargeError, match=r"0\.03379 megapixels in all; at most 0\.03072"):
        decode(file_of(H264), few)
    first = replace(MEANING, sampling=Sampling.FIRST)
    assert prepare_clip(file_of(H264), first, few).run().shape == MEANING.image_shape


def test_a_decoder_makes_no_frame_larger_than_the_container_says(
    processes: ProcessPool,
) -> None:
    """A file declares a small video but contains a large one. With only the memory for the small
    video, it is refused."""
    large = with_size(video([scene(2000, 2000)] * 2, preset="ultrafast", qp="40"), 64, 48)
    decoding = prepare_clip(large, MEANING, LIMITS)
    assert decoding.cost.bytes < 2_000_000 + len(large)
    with pytest.raises(ImageError, match="frame 1 of the video cannot be decoded"):
        processes.run(decoding.run, decoding.cost.bytes)


def film_of(kind: str, **changed: Any) -> Film:
    film = prepare_clip(file_of(kind), MEANING, LIMITS).run
    assert isinstance(film, Film)
    return replace(film, **changed)


def test_a_video_that_takes_long_is_given_up_between_two_frames() -> None:
    with pytest.raises(PayloadTooLargeError, match="took more than the 0 s"):
        film_of(H264, longest_s=0.0)()


def test_frames_beyond_the_last_that_is_wanted_are_not_decoded() -> None:
    film = film_of("MP4 of VP9", chosen=[0, 2])
    film = replace(film, packets=[*film.packets[:3], memoryview(b"no frame")])
    assert film().shape[0] == 2
    with pytest.raises(ImageError, match="frame 4 of the video cannot be decoded"):
        replace(film, chosen=[0, 3])()


def test_frames_that_overlap_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 66 kB would become 32 MB of coded frames."""
    data = file_of(H264)
    whole = parse_mp4(data, MOST_FRAMES)
    assert prepare_clip(data, MEANING, LIMITS).copied < len(data)
    longer = whole._replace(packets=[memoryview(data)[: len(data) // 2]] * 3)
    monkeypatch.setattr(clip, "parse_mp4", lambda *_: longer)
    with pytest.raises(ImageError, match="the frames of the video overlap"):
        prepare_clip(data, MEANING, LIMITS)


def test_a_video_of_fewer_frames_than_it_says_is_refused() -> None:
    film = film_of("MP4 of VP9")
    with pytest.raises(ImageError, match="the video ends after 3 frames"):
        replace(film, packets=film.packets[:3])()


def test_one_packet_of_many_frames_gets_no_more_memory_than_the_video(
    processes: ProcessPool,
) -> None:
    """An AV1 packet may contain any number of frames, and the decoder returns all of them at
    once."""
    frames = [Image.new("RGB", (640, 480), "grey")] * 4
    film = prepare_clip(video(frames, encoder="libsvtav1", crf="60", g="1"), MEANING, LIMITS)
    run = film.run
    assert isinstance(run, Film)
    bomb = replace(run, packets=[memoryview(b"".join(run.packets) * 200)])
    with pytest.raises(
        PayloadTooLargeError, match=r"decoding takes more than the \d+ MB of memory"
    ):
        in_process(processes)(bomb, film.cost.bytes)
    assert len(processes.run(run, film.cost.bytes)) == MEANING.frames


def test_a_video_is_decoded_apart_to_the_same_pixels(processes: ProcessPool) -> None:
    for kind in KINDS:
        decoding = prepare_clip(file_of(kind), MEANING, LIMITS)
        assert decoding.apart
        there = processes.run(decoding.run, decoding.cost.bytes)
        np.testing.assert_array_equal(there, decoding.run())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lists a process's threads")
def test_a_decoder_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    files = [file_of(kind) for kind in KINDS]  # encoders have threads
    counts, check, before = set(), Film._check, threads()

    def check_and_count(film: Film, frame: Any) -> None:
        counts.add(threads())
        check(film, frame)

    monkeypatch.setattr(Film, "_check", check_and_count)
    for file in files:
        decode(file)
    assert counts == {before}


def test_without_pyav_a_video_is_refused_with_the_extras_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clip, "_HAS_PYAV", False)
    with pytest.raises(UnsupportedMediaTypeError, match="install Convoy with the extra `video`"):
        prepare_clip(file_of(H264), MEANING, LIMITS)


# --- fuzzing -------------------------------------------------------------------------------------


def hurt(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 10, 40))):
        place = rng.randrange(len(changed))
        changed[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    if rng.random() < 0.1:
        del changed[rng.randrange(len(changed)) :]
    return bytes(changed)


def hurt_index(data: bytes, rng: random.Random) -> bytes:
    """Return a damaged copy of a video. Mostly parts outside the coded frames are damaged."""
    packets = parse(data).packets
    first = min(data.index(bytes(packet)) for packet in packets)
    if WEBM.begins(data):
        return hurt(data[:first], rng) + data[first:]
    index = data.index(b"moov") if b"moov" in data else 0
    return (
        data[:index] + hurt(data[index:], rng)
        if index > first
        else (hurt(data[:first], rng) + data[first:])
    )


def fuzz(processes: ProcessPool, rounds: int, seed: int) -> Mapping[str, int]:
    """Return the number of damaged videos with each outcome, decoded as in a server."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    limits = ImageLimits(max_bytes=10**6, max_pixels=10_000)
    for number in range(rounds):
        for kind in KINDS:
            data = (hurt_index if number % 2 else hurt)(file_of(kind), rng)
            try:
                decoding = prepare_clip(data, MEANING, limits)
                pixels = in_process(processes)(decoding.run, decoding.cost.bytes)
                assert pixels.shape == MEANING.image_shape
                outcomes["pixels"] += 1
            except ServiceError as error:
                assert 400 <= error.code < 500, (kind, error)  # noqa: PT017
                assert len(str(error)) < 400  # noqa: PT017
                outcomes[type(error).__name__] += 1
    return outcomes


def test_only_pixels_or_the_clients_errors_come_of_hurt_videos(processes: ProcessPool) -> None:
    outcomes = fuzz(processes, 12, 0)
    assert outcomes["pixels"] > 20
    assert outcomes["ImageError"] > 50


@pytest.mark.slow
def test_only_pixels_or_the_clients_errors_come_of_many_hurt_videos(
    processes: ProcessPool,
) -> None:
    outcomes = fuzz(processes, 600, 1)
    assert outcomes["pixels"] > 1000
    assert outcomes["ImageError"] > 2500
