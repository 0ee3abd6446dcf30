"""Recorded exports get the same answers as from their exporters' pipelines, or are refused with a
remedy."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.exporters.__main__ import MOST_BYTES, PHOTOGRAPHS, RECORDINGS, record
from benchmarks.exporters.catalogue import EXPECTED, OTHERWISE
from benchmarks.exporters.check import ARE_RIGHT, REFUSED, STEPS, WARNED, WRONG, check, verdict

RECORDED = sorted(file.parent for file in RECORDINGS.glob(f"*/{EXPECTED}"))

REMEDIES = {
    # A row of 64 numbers is no image: the model, not a key, has to change.
    "scikit-learn-zipmap": "image",
    "scikit-learn-class-and-scores": "image",
    "scikit-learn-columns": "image",
}
"""The models that are refused, each with a word of the reason."""

UNTOLD = ("pytorch-old-bytes", "pytorch-old-parts-of-1")
"""Models whose file and network do not show their preprocessing: the answers are wrong, and a
warning says so."""


@pytest.mark.parametrize("model", RECORDED, ids=lambda model: model.name)
def test_an_export_is_answered_as_its_exporter_answers(model: Path) -> None:
    found = verdict(model, PHOTOGRAPHS)
    if model.name in REMEDIES:
        assert found.outcome == REFUSED
        assert REMEDIES[model.name] in found.said
    elif model.name in UNTOLD:
        assert found.outcome == WARNED
        assert "preset" in found.said
    else:
        assert found.outcome in ARE_RIGHT, found


def test_every_exception_is_recorded() -> None:
    assert {*REMEDIES, *UNTOLD} < {model.name for model in RECORDED}


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """Copy a recording, with other answers from the pipeline."""
    model = tmp_path / "pytorch-old-logits"
    shutil.copytree(RECORDINGS / model.name, model)
    expected = json.loads((model / EXPECTED).read_text())
    for scores in expected.values():
        scores[0], scores[2] = scores[2], scores[0]
    (model / EXPECTED).write_text(json.dumps(expected))
    return model


def test_an_answer_that_differs_is_never_right(spoilt: Path) -> None:
    (found,) = check(spoilt.parent, PHOTOGRAPHS)
    assert found.outcome not in (*ARE_RIGHT, REFUSED)
    assert found.difference is not None
    assert found.difference > 0.1


@pytest.mark.parametrize(("apart", "is_right"), [(0.02, False), (0.03, True)])
def test_a_quantized_network_may_differ_by_twice_what_its_runtime_does(
    apart: float, is_right: bool, tmp_path: Path
) -> None:
    model = tmp_path / "onnxruntime-qdq-u8s8-old-logits"
    shutil.copytree(RECORDINGS / model.name, model)
    scores = json.loads((model / EXPECTED).read_text())
    for name, shift in ((EXPECTED, 0.05), (OTHERWISE, 0.05 + apart)):
        moved = {photograph: [p + shift for p in row] for photograph, row in scores.items()}
        (model / name).write_text(json.dumps(moved))
    assert (verdict(model, PHOTOGRAPHS).outcome == STEPS) == is_right


def test_a_missing_class_is_wrong(spoilt: Path) -> None:
    expected = json.loads((spoilt / EXPECTED).read_text())
    (spoilt / EXPECTED).write_text(json.dumps({k: s[:-1] for k, s in expected.items()}))
    assert verdict(spoilt, PHOTOGRAPHS).outcome == WRONG


def test_only_small_models_are_recorded(spoilt: Path, tmp_path: Path) -> None:
    large = spoilt.parent / "large"
    shutil.copytree(spoilt, large)
    (large / "weights").write_bytes(bytes(MOST_BYTES))
    record(spoilt.parent, tmp_path / "recorded")
    assert [each.name for each in (tmp_path / "recorded").iterdir()] == [spoilt.name]
