"""A model and its 8-bit form are measured in turn, with the processor's time of an answer."""

import os
from pathlib import Path
from time import process_time

import numpy as np
import onnx
import pytest
from PIL import Image

from benchmarks.serving import eight_bits
from benchmarks.serving.eight_bits import EIGHT_BITS, FLOAT, JPEG, Labels
from models import BUILT_IN_MODEL
from tests.support.models.quantized import quantized


def test_models_take_turns_and_an_image_has_its_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, clock, cpu = [], [0.0], {FLOAT: 0.0, EIGHT_BITS: 0.0}
    monkeypatch.setattr(eight_bits, "perf_counter", lambda: clock[0])

    def run(name: str, each: float) -> list[float]:
        turns.append(name)
        clock[0] += 10 * each
        cpu[name] += 15 * each
        return [each] * 10

    loops: eight_bits._Loops = {
        FLOAT: (lambda: run(FLOAT, 0.02), lambda: cpu[FLOAT]),
        EIGHT_BITS: (lambda: run(EIGHT_BITS, 0.01), lambda: cpu[EIGHT_BITS]),
    }
    rows = eight_bits.measurements(eight_bits.in_turn(loops, 2), JPEG, 8, images=4)
    assert turns == [FLOAT, EIGHT_BITS, EIGHT_BITS, FLOAT]
    assert [(row.model, row.kind, row.at_once, row.images) for row in rows] == [
        (FLOAT, JPEG, 8, 80),
        (EIGHT_BITS, JPEG, 8, 80),
    ]
    assert [row.images_a_second for row in rows] == pytest.approx([200, 400])
    assert [row.p50_ms for row in rows] == [20, 10]
    assert [row.cpu_ms for row in rows] == pytest.approx([7.5, 3.75])
    shown = eight_bits._table(rows, cores=2)
    gains, bounds = list(shown.columns[-1].cells), list(shown.columns[-2].cells)
    assert gains == ["", "2.00"]
    assert bounds == ["266.7", "533.3"]  # 2 cores, each of which gives one in 7.5 or in 3.75 ms


def test_the_time_of_a_process_grows_with_what_it_computes() -> None:
    before, own = eight_bits.cpu_of(os.getpid()), process_time()
    while process_time() - own < 0.1:
        pass
    # Counted twice: as the server, and as the client. The kernel counts in ticks of 10 ms.
    assert eight_bits.cpu_of(os.getpid()) - before >= 0.18


def test_labels_are_compared_where_they_are_clear_and_where_they_are_known() -> None:
    def best(label: str, first: float) -> list[dict[str, object]]:
        return [
            {"label": label, "probability": first},
            {"label": "other", "probability": 0.4},
        ]

    answers = {
        FLOAT: [best("cat", 0.6), best("cat", 0.45), best("dog", 0.6)],
        EIGHT_BITS: [best("cat", 0.5), best("dog", 0.45), best("cat", 0.6)],
    }
    found = eight_bits.compared(answers, [["cat"], ["dog"], []])
    assert found == Labels(
        images=3, kept=1, clear=2, kept_clear=1, named=2, right=1, right_in_8_bits=2
    )


@pytest.mark.slow
def test_a_model_is_measured_beside_its_8_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for file in sorted((BUILT_IN_MODEL.parent / "samples").iterdir()):
        Image.open(file).convert("L").save(photos / f"{file.name[0]}_{file.stem}.jpg", quality=95)
    model = tmp_path / "digits.onnx"
    onnx.save(onnx.load(BUILT_IN_MODEL), model)
    images = np.random.default_rng(0).normal(size=(4, 1, 32, 32)).astype(np.float32)
    small = quantized(model, tmp_path / "small.onnx", images)
    for each in (model, small):
        each.with_suffix(".toml").write_text('preset = "digits"\n')
    eight_bits.main([str(model), str(small), str(photos), "--seconds", "0.3", "--rounds", "2"])
    shown = capsys.readouterr().out
    assert shown.count(EIGHT_BITS) == shown.count(FLOAT) == 6
    assert "Over HTTP, of 5 photographs" in shown
