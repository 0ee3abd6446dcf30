"""What processes share, piece by piece: slots, records, the board."""

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.processes.board import Board
from service.processes.memory import Memory
from service.processes.messages import Ask, Records, Tell
from service.processes.slots import TEXT_BYTES, Slots

from models import OutputKind, Pixels
from service.batching.batcher import Load
from service.batching.latency import Latency
from service.batching.waiting import Answered
from service.engine.ranking import ScoreRow, rank
from service.engine.runner import State
from service.errors import DeadlineError, RetryableError, ServiceError
from service.processes import messages

SHAPE = (2, 3, 1)
CLASSES = 7


def image(tag: int) -> Pixels:
    return np.full(SHAPE, tag, np.uint8)


def test_a_slot_keeps_scores_and_moments() -> None:
    slots = Slots(Memory(Slots.bytes_of(SHAPE, CLASSES, 3)).view, SHAPE, CLASSES, 3)
    scores = np.arange(CLASSES, dtype=np.float32)
    slots.answer([1], Answered([ScoreRow(scores)], 4, 7.0, 8.0), dispatched=100.5)
    (row,) = slots.rows([1], OutputKind.LOGITS)
    assert slots.answered([1], [row], 100.0) == Answered([row], 4, 0.5, 8.0)
    slots.answer([1], Answered([ScoreRow(-scores)], 1, 0.0, 0.0), dispatched=0.0)
    assert (row.scores == scores).all()  # a copy
    assert row.ranking == rank(scores[np.newaxis], OutputKind.LOGITS)[0].ranking


def test_slots_do_not_overlap() -> None:
    count = 5
    memory = Memory(Slots.bytes_of(SHAPE, CLASSES, count))
    slots = Slots(memory.view, SHAPE, CLASSES, count)
    slots.put(range(count), [image(n) for n in range(count)])
    for n in range(count):
        row = ScoreRow(np.full(CLASSES, n, np.float32))
        slots.answer([n], Answered([row], n + 1, 0.0, n), dispatched=n)
        slots.write_text(n, f"{n}" * TEXT_BYTES)
    assert slots.chain(0, count) == list(range(count))
    for n in range(count):
        assert (slots.image(n) == n).all()
        told = slots.answered([n], slots.rows([n], OutputKind.LOGITS), 0.0)
        assert (told.results[0].scores == n).all()
        assert (told.batch_size, told.compute_s) == (n + 1, n)
        assert slots.text(n, TEXT_BYTES) == f"{n}" * TEXT_BYTES


def test_a_chain_that_nobody_can_have_written_is_refused() -> None:
    slots = Slots(Memory(Slots.bytes_of(SHAPE, CLASSES, 3)).view, SHAPE, CLASSES, 3)
    for first, count in ((3, 1), (0, 4), (2**32 - 1, 1), (2**31, 2)):
        with pytest.raises((ValueError, IndexError)):
            slots.chain(first, count)


def _every_error() -> list[ServiceError]:
    kinds, found = [ServiceError], []
    for kind in kinds:
        kinds += kind.__subclasses__()
        if issubclass(kind, DeadlineError):
            found.append(kind(0.25, -0.5))
        elif issubclass(kind, RetryableError):
            found.append(kind("later", 2.5))
        else:
            found.append(kind("no"))
    return found


@pytest.mark.parametrize("error", _every_error(), ids=lambda e: type(e).__name__)
def test_every_error_arrives_as_it_was(error: ServiceError) -> None:
    (record,) = Records.told().read(messages.failed(7, error, 5))
    tell, code, length, request, first, second = record
    assert (tell, length, request) == (Tell.FAILED, 5, 7)
    told = messages.error_of(code, str(error), first, second)
    assert type(told) is type(error)
    assert (str(told), told.headers()) == (str(error), error.headers())


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.data())
def test_records_arrive_whole_however_they_are_cut(numbers: list[int], data: st.DataObject) -> None:
    stream = b"".join(messages.submit(n, 3, 2, 1, inf, 9) for n in numbers)
    records = Records.asked()
    read: list[tuple[Any, ...]] = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        read += records.read(stream[:cut])
        stream = stream[cut:]
    assert read == [(Ask.SUBMIT, 9, 3, 2, n, 1, inf) for n in numbers]


def test_images_inside_add_up_and_those_of_a_dead_worker_are_forgotten() -> None:
    board = Board(3, 4, 8)
    sides = [board.inside(number) for number in range(3)]
    for number, inside in enumerate(sides, 1):
        inside.add(number)
    sides[0].add(-1)
    assert [inside.images for inside in sides] == [5, 5, 5]
    board.inside(2).forget()
    assert sides[0].images == 2


def test_rows_of_counts_are_everyones_and_outlive_a_worker() -> None:
    board = Board(2, 4, 8)
    board.rows(10, 0)[0][3] += 5
    board.rows(10, 1)[0][3] += 7
    board.rows(10)[0][3] += 1
    own, every = board.rows(10, 0)  # of the one that takes its place
    assert own[3] == 5
    assert sum(row[3] for row in every) == 13
    board.line().write(State.READY, Load(1, 2, 3.0, 4.0, 5.0), Latency((1.0,) * 4), 6)
    board.inside(1).add(3)
    assert [sum(row) for row in every] == [5, 7, 1]
