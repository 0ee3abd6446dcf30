"""Jobs decode the images that they run. If an image cannot be decoded, only this image fails, and
its batch runs."""

import asyncio
import struct
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest

from models import BUILT_IN_MODEL, Pixels, load_classifier
from service.batching.policy import SHORT_WITH_DECODING_S
from service.engine.lane import Cost
from service.engine.undecoded import NotHereError
from service.engine.watchdog import Bounds
from service.errors import ImageError
from service.hosting.finding import decoder
from service.hosting.pipeline import Pipeline
from service.hosting.presets import PHOTOGRAPHS
from service.images.decode_pool import Coded, Decoding
from service.images.jpeg import jpeg_size, parse_jpeg
from service.settings import Settings
from service.telemetry.counts import PHASES
from tests.service.hosting.test_request_files import Ask, pipeline_of
from tests.support.service.fakes import LONG_S, FakeEngine, decode_digit

pytestmark = pytest.mark.anyio

HEAD = b"\x89PNG\r\n\x1a\n" + bytes(8) + struct.pack(">II", 30, 20)  # of 30×20 pixels

THREADS: list[tuple[bytes, str]] = []  # of each decode
STUCK: list[tuple[str, threading.Event]] = []  # threads, until `time_passes` for one
NEVER = threading.Event()


@pytest.fixture(autouse=True)
def forgotten() -> None:
    THREADS.clear()
    STUCK.clear()


def decode(data: bytes) -> Pixels:
    """Decode an image. A slow image takes longer than its time limit, and a hanging image never
    ends."""
    thread = threading.current_thread().name
    THREADS.append((data, thread))
    if b"slow" in data or b"hangs" in data:
        too_late = threading.Event()
        STUCK.append((thread, too_late))
        too_late.wait(LONG_S)
    if b"hangs" in data:
        NEVER.wait()
    return decode_digit(data)


def prepare(data: bytes) -> Decoding:
    """Prepare an image. A large image takes longer than a job may use, and an odd image is decoded
    separately."""
    cost = Cost(1000, 0.03 if b"large" in data else 0.0005)
    return Decoding(cost, partial(decode, data), apart=b"odd" in data)


@asynccontextmanager
async def time_passes(pipeline: Pipeline) -> AsyncIterator[None]:
    """Within the block, threads with a slow or hanging file exceed their time limit, and no other
    threads do."""

    async def pass_() -> None:
        while True:
            await asyncio.sleep(0.005)
            while STUCK:
                name, too_late = STUCK.pop()
                decoders, engines = pipeline.decoders, pipeline.runner._engines
                lanes = decoders._quick, decoders._large, decoders._long
                pools = [lane.pool for lane in lanes] + [each._thread.pool for each in engines]
                for pool in pools:
                    for thread in pool._threads:
                        if thread.name == name and thread.job is not None:
                            thread.job.spent_s = LONG_S
                    pool.look(0)
                too_late.set()

    passing = asyncio.create_task(pass_())
    yield
    passing.cancel()


def where(data: bytes) -> list[str]:
    return [name.rpartition("-")[0] for file, name in THREADS if file == data]


@pytest.mark.parametrize("order", [("broken", "slow", "hangs"), ("hangs", "broken", "slow")])
async def test_a_broken_a_slow_and_a_hanging_file_harm_no_other_of_their_batch(
    order: tuple[str, ...],
) -> None:
    engine = FakeEngine(max_batch=16)
    async with pipeline_of(engine, prepare=prepare, decodes=True) as p, time_passes(p):
        bad = {name: (b"x" if name == "broken" else b"1 ") + name.encode() for name in order}
        good = [b"%d" % digit for digit in range(7)]
        asked = {file: Ask(p, file) for file in (*good[:2], *bad.values(), *good[2:])}
        assert p.runner.batcher.depth == 10
        answers = {file: await each.answer() for file, each in asked.items()}
        assert [answers[file] for file in good] == [[digit] for digit in range(7)]
        broken, slow, hangs = (answers[bad[name]] for name in ("broken", "slow", "hangs"))
        assert broken == "ImageError: the picture is no digit; send a digit"
        for answer in (slow, hangs):
            assert str(answer).startswith("ThreadLostError: the server gave up")
            assert "may be the cause" in str(answer)
        # The engine was not the cause: it goes on, and was not opened again.
        assert p.runner.engines[0].restarts == 0
        assert await Ask(p, b"8").answer() == [8]
        assert where(b"8") == ["engine"]
        assert p.runner.lost_to_decoders == 1


async def test_jobs_decode_where_that_takes_no_less_than_running() -> None:
    async with pipeline_of(FakeEngine(), prepare=prepare, decodes=True) as pipeline:
        assert pipeline.runner.decodes
        assert await Ask(pipeline, b"3").answer() == [3]
        assert where(b"3") == ["engine"]
    async with pipeline_of(FakeEngine(delay_s=0.1), prepare=prepare, decodes=True) as pipeline:
        assert not pipeline.runner.decodes
        assert await Ask(pipeline, b"4").answer() == [4]
        assert where(b"4") == ["decode"]
    on_device = FakeEngine()
    on_device.on_cpu = False
    async with pipeline_of(on_device, prepare=prepare, decodes=True) as pipeline:
        assert not pipeline.runner.decodes


async def test_what_takes_long_or_may_crash_a_decoder_goes_back_to_the_pool() -> None:
    async with pipeline_of(FakeEngine(), prepare=prepare, decodes=True) as pipeline:
        files = b"1", b"2 large", b"3"
        assert await Ask(pipeline, *files).answer() == [1, 2, 3]
        assert [where(file) for file in files] == [["engine"], ["decode"], ["engine"]]
        np.testing.assert_array_equal(pipeline.coded(b"1").read()(), decode_digit(b"1"))
        with pytest.raises(NotHereError):
            pipeline.coded(b"1 odd").read()
        answer = await Ask(pipeline, b"1", b"x large", b"x").answer()
        assert answer == "ImageError: image 2 of 3: the picture is no digit; send a digit"


async def test_the_images_after_a_hang_keep_their_own_errors() -> None:
    def prepare_behind(data: bytes) -> Decoding:
        if b"headless" in data:
            raise ImageError("it has no header")
        return prepare(data.removeprefix(HEAD))

    async with (
        pipeline_of(FakeEngine(), prepare=prepare_behind, decodes=True) as p,
        time_passes(p),
    ):
        files = [b"1 hangs"], [b"2", b"headless"], [b"3"]
        asked = [Ask(p, *(HEAD + file for file in each)) for each in files]
        hung, headless, good = [await each.answer() for each in asked]
        assert str(hung).startswith("ThreadLostError")
        assert headless == "ImageError: image 2 of 2: it has no header"
        assert good == [3]


async def test_a_job_reads_all_headers_of_its_batch_before_it_decodes() -> None:
    done = []

    def drawn() -> Pixels:
        done.append("pixels")
        return decode_digit(b"5")

    def noting(data: bytes) -> Decoding:
        assert data == HEAD
        done.append("header")
        return Decoding(Cost(1000, 0.0005), drawn)

    async with pipeline_of(FakeEngine(), prepare=noting, decodes=True) as pipeline:
        done.clear()
        assert await Ask(pipeline, HEAD, HEAD, HEAD).answer() == [5, 5, 5]
        assert done == 3 * ["header"] + 3 * ["pixels"]


async def test_the_first_wrong_header_is_named_whoever_reads_it() -> None:
    def prepare_none(data: bytes) -> Decoding:
        raise ImageError(f"{len(data)} bytes are no image")

    async with pipeline_of(FakeEngine(), prepare=prepare_none, decodes=True) as pipeline:
        read_in_the_job, read_at_once = HEAD, b"1"
        answer = await Ask(pipeline, read_in_the_job, read_at_once).answer()
        assert answer == "ImageError: image 1 of 2: 24 bytes are no image"


def test_the_header_is_read_in_the_job_where_the_size_is_found_at_once() -> None:
    prepare_digits = decoder(load_classifier(BUILT_IN_MODEL).preprocessing, Settings())
    for file in (PHOTOGRAPHS[0].read_bytes(), HEAD):
        never = Coded.of(file, prepare_nothing, 2**24)
        assert never.expected_s > 0
        with pytest.raises(AssertionError):
            never.read()
    photograph = PHOTOGRAPHS[0].read_bytes()
    coded = Coded.of(photograph, prepare_digits, 2**24)
    assert coded.expected_s == pytest.approx(coded.decoding.cost.seconds, rel=0.5)
    np.testing.assert_array_equal(coded.read()(), prepare_digits(photograph).run())
    for broken in (b"", b"GIF89a", photograph[:10]):  # refused at once
        with pytest.raises(ImageError):
            Coded.of(broken, prepare_digits, 2**24)


def test_a_jpeg_has_its_size_though_more_is_wrong_with_it() -> None:
    photograph = PHOTOGRAPHS[0].read_bytes()
    file = parse_jpeg(photograph)
    assert jpeg_size(photograph) == (file.width, file.height)
    assert jpeg_size(photograph[:-1000]) == (file.width, file.height)
    for end in range(0, 160, 7):  # its frame header begins behind that
        assert jpeg_size(photograph[:end]) is None
    assert jpeg_size(b"\x89PNG" + photograph) is None


def prepare_nothing(_: bytes) -> Decoding:
    raise AssertionError


async def test_jobs_without_a_time_limit_do_not_decode() -> None:
    async with pipeline_of(FakeEngine(), decodes=True, bounds=Bounds(batch_s=0)) as pipeline:
        assert not pipeline.runner.decodes


async def test_expected_times_contain_decoding_from_the_start() -> None:
    async with pipeline_of(FakeEngine(max_batch=4), prepare=prepare, decodes=True) as pipeline:
        latency = pipeline.runner.batcher.latency()
        assert latency.of(1) >= 0.02
        assert latency.of(4) >= 0.08
        assert latency.of(1) > SHORT_WITH_DECODING_S


async def test_a_job_has_its_part_of_the_memory_for_decoding() -> None:
    async with pipeline_of(FakeEngine(), others=[FakeEngine()]) as pipeline:
        without = pipeline.decoders.large_bytes
    async with pipeline_of(FakeEngine(), others=[FakeEngine()], decodes=True) as pipeline:
        pool = pipeline.decoders
        assert pool.large_bytes == without - 2 * pool.quick_bytes


async def test_the_time_of_a_decode_in_a_job_counts_as_decoding() -> None:
    def prepare_late(data: bytes) -> Decoding:
        def late() -> Pixels:
            time.sleep(0.1)
            return decode_digit(data)

        return Decoding(Cost(), late)

    async with pipeline_of(FakeEngine(), prepare=prepare_late, decodes=True) as pipeline:
        began = time.perf_counter()
        asked = Ask(pipeline, b"3")
        asked.call.record.received = time.perf_counter()
        assert await asked.answer() == [3]
        assert asked.phases is not None
        times = dict(zip(("total", *PHASES), asked.phases, strict=True))
        assert times["decode"] >= 0.1e6
        # Nor does it count as computing, too: all phases are as long as it took.
        assert times["total"] <= (time.perf_counter() - began) * 1e6 + 9


async def test_requests_that_arrive_together_make_one_batch() -> None:
    engine = FakeEngine()
    async with pipeline_of(engine, prepare=prepare, decodes=True) as pipeline:
        engine.batches.clear()
        asked = [Ask(pipeline, b"%d" % digit) for digit in range(8)]
        assert [await each.answer() for each in asked] == [[digit] for digit in range(8)]
        assert engine.batches == [8]
