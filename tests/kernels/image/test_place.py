"""The data written to places: an entry of the size that kernels read, then the image."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.device.device import SOURCE_ROOT
from kernels.device.signature import fields
from kernels.image.place import (
    ENTRY_BYTES,
    SOURCE,
    Kind,
    array_bytes,
    kind_of,
    kind_of_batch,
    write,
)
from kernels.problems.interpolation import Interpolation
from tests.support.cases.resize import FRAME, decoded, pixels, tensor

IMAGE = pixels(FRAME[1], FRAME[0], 3)
TENSOR = tensor(3, 1)
DECODED = decoded((31, 17), Interpolation.BILINEAR)


@pytest.mark.parametrize("array", [IMAGE, TENSOR, TENSOR[:, ::-1, ::2]], ids=["u8", "f32", "view"])
def test_an_array_lies_behind_its_entry_and_nothing_behind_that_is_touched(
    array: NDArray[Any],
) -> None:
    place = np.full(array_bytes(array.nbytes) + 16, 0xA7, np.uint8)
    write(place, array)
    end = ENTRY_BYTES + array.nbytes
    kind, used, data, middle = place[:16].view(np.int32)
    assert (kind, data, middle) == (kind_of(array), ENTRY_BYTES, 0)
    assert used == array_bytes(array.nbytes)
    assert place[ENTRY_BYTES:end].tobytes() == array.tobytes()
    assert (place[end:] == 0xA7).all()


def test_a_place_has_room_for_whole_vectors() -> None:
    assert ENTRY_BYTES % 16 == 0
    assert [array_bytes(n) - ENTRY_BYTES for n in (1, 16, 17)] == [16, 16, 32]


def test_an_entry_fills_what_is_kept_for_it() -> None:
    declared = fields(SOURCE_ROOT / SOURCE, "Entry")
    numbers = sum((field.length or 1) * (3 if field.type == "Divisor" else 1) for field in declared)
    assert ENTRY_BYTES - 16 < 4 * numbers <= ENTRY_BYTES


def test_the_kinds_are_numbered_as_the_kernels_number_them() -> None:
    text = (SOURCE_ROOT / SOURCE).read_text(encoding="utf-8")
    (declared,) = re.findall(r"enum Kind \{(.*?)\}", text, re.DOTALL)
    assert re.findall(r"^  (\w+),", declared, re.MULTILINE) == [kind.name for kind in Kind]
    assert list(Kind) == list(range(len(Kind)))


def test_a_batch_is_of_the_last_kind_that_is_in_it() -> None:
    assert kind_of_batch([IMAGE, IMAGE]) is Kind.PIXELS
    assert kind_of_batch(np.stack([IMAGE])) is Kind.PIXELS
    assert kind_of_batch(np.stack([TENSOR])) is Kind.TENSOR
    assert kind_of_batch([TENSOR, IMAGE]) is Kind.TENSOR
    assert kind_of_batch([DECODED, TENSOR, IMAGE]) is Kind.DECODED
    with pytest.raises(KeyError):
        kind_of(TENSOR.astype(np.float64))  # type: ignore[arg-type]
