"""What processes share; here each is another mapping of the same memory."""

import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from models import Kind
from service.batching.consumer import BatchRecord
from service.errors import Code, QueueFullError
from service.hosting.admission import Admission, ByteRoom, Reservation
from service.processes.shared import Crew, Memory, ModelFacts, SharedAdmission, SharedModel
from service.telemetry.counts import Counts, Phases
from tests.support.service.client import metric_in
from tests.support.service.fakes import CLASSES, decode_digit, fake_info

WORKERS = 3
MODEL = ModelFacts(fake_info(), decode_digit, 5, CLASSES, 4, "fake", "fp32")  # type: ignore[arg-type]


def as_in_another_process(memory: Memory) -> Memory:
    """What is left of one that was pickled."""
    other = Memory.__new__(Memory)
    other.__setstate__(SimpleNamespace(detach=lambda: os.dup(memory._file)))
    return other


def two_processes() -> tuple[SharedModel, SharedModel]:
    memory = Memory()
    every = [
        SharedModel(each, WORKERS, MODEL, 4) for each in (memory, as_in_another_process(memory))
    ]
    return every[0], every[1]


def test_arrays_are_the_same_in_another_process_and_do_not_overlap() -> None:
    one, other = two_processes()
    pixels, theirs = (each.images[Kind.PIXELS] for each in (one, other))
    arrays = [pixels, one.scores, *map(np.asarray, (*one.inside, *one.counts))]
    seen = [theirs, other.scores, *map(np.asarray, (*other.inside, *other.counts))]
    assert all((array == 0).all() for array in seen)
    for number, array in enumerate(arrays, 1):
        array[...] = number
    for number, array in enumerate(seen, 1):
        assert (array == number).all()
    assert pixels.shape == (WORKERS, 5, 1, 1, 1)
    assert one.scores.shape == (WORKERS, 5, CLASSES)
    assert len(one.inside) == WORKERS
    assert len(one.counts) == WORKERS + 1


def test_a_slot_has_room_for_pixels_or_a_tensor() -> None:
    info = replace(MODEL.info, image_shape=(2, 3, 3), tensor="x", tensor_shape=(3, 2, 3))
    shared = SharedModel(Memory(), 2, MODEL._replace(info=info), 4)
    pixels, tensors = shared.images[Kind.PIXELS], shared.images[Kind.TENSOR]
    assert pixels.shape == (2, 5, 2, 3, 3)
    assert tensors.shape == (2, 5, 3, 2, 3)
    pixels[1, 2] = 7
    assert (tensors[1, 2].ravel().view(np.uint8)[:18] == 7).all()
    tensors[1, 2] = 1.0
    assert (pixels[1, 3] == 0).all()
    assert Kind.DECODED not in shared.images


def test_memory_is_gone_once_it_is_mapped_nowhere() -> None:
    memory = Memory()
    array, file = memory.array((2,), np.int64), memory._file
    assert "memfd:convoy" in os.readlink(f"/proc/self/fd/{file}")
    del memory
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    array += 1  # what is mapped stays
    assert array.tolist() == [1, 1]


def phases() -> Phases:
    return Phases.of(0.1, 0.01, 0.02, 0.03, 0.04)


def test_counts_of_all_processes_add_up_and_outlive_a_worker() -> None:
    one, other = two_processes()
    main, first = Counts(4, one.counts, WORKERS), Counts(4, other.counts, 0)
    first.answered(2, phases())
    first.refused(Code.UNAVAILABLE, 0.5)
    main.batch(BatchRecord(2, 0.04, failed=False))
    for counts in (main, first, Counts(4, one.counts, 2)):
        told = counts.sum()
        assert (told.inferences, told.requests) == (2, {200: 1, 503: 1})
        assert told.executions == 1
    again = Counts(4, other.counts, 0)  # in the first one's place
    again.answered(1, phases())
    assert main.sum().inferences == 3


def test_images_inside_are_bounded_over_all_workers() -> None:
    own = Admission(
        max_images=5,
        max_images_a_request=5,
        max_body_bytes=100,
        room=ByteRoom(100),
        expected_wait_s=lambda: 2.0,
    )
    one, other = two_processes()
    first, second = SharedAdmission(own, one.inside, 0), SharedAdmission(own, other.inside, 1)
    held = Reservation(first)
    held.admit(4)
    asked = Reservation(second)
    asked.admit(1)
    assert (first.images, second.images) == (5, 5)
    with pytest.raises(QueueFullError, match="5 of at most 5 are queued"):
        asked.admit(1)
    held.release()
    asked.admit(4)
    one.inside[1][0] = 0  # its worker is gone
    assert first.images == 0


def test_metrics_tell_how_many_workers_there_are_and_were() -> None:
    crew = Crew(Memory(), WORKERS)
    crew.listening[0] = crew.listening[2] = 1
    crew.replaced[1] += 4
    registry = CollectorRegistry()
    registry.register(crew)
    text = generate_latest(registry).decode()
    assert metric_in(text, "convoy_workers") == 2
    assert metric_in(text, "convoy_workers_replaced_total") == 4
