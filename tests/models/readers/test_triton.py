"""Triton's config.pbtxt: labels, the largest batch, deadline and priority; other fields are
listed."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from models import load_classifier
from models.description import load_description
from models.errors import PreprocessingError
from models.served import Serving

CONFIG = """
name: "flowers"  # as its folder
platform: "onnxruntime_onnx"
max_batch_size: 4
input [ { name: "x", data_type: TYPE_FP32, format: FORMAT_NCHW, dims: [ 3, 8, 8 ] } ]
output {
  name: 'y'
  data_type: TYPE_FP32
  dims: 2
  label_filename: "flowers.txt"
}
dynamic_batching {
  preferred_batch_size: [ 2, 4 ]
  max_queue_delay_microseconds: 500
  priority_levels: 3
  default_priority_level: 3
  default_queue_policy < timeout_action: REJECT; default_timeout_microseconds: 2500
                         allow_timeout_override: true >
}
instance_group [ { count: 2 kind: KIND_GPU } ]
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the path of the model of version 1."""
    (tmp_path / "flowers.txt").write_text("daisy\nrose\n")
    (tmp_path / "1").mkdir()
    return tmp_path / "1" / "model.onnx"


def configure(model: Path, text: str) -> None:
    model.parent.with_name("config.pbtxt").write_text(text)


def test_what_is_read_and_what_is_not(model: Path) -> None:
    configure(model, CONFIG)
    described = load_description(model, (3, 8, 8))
    assert described.preprocessing.labels == ("daisy", "rose")
    assert described.serving == Serving(max_batch=4, timeout_ms=2.5, priority=3)
    assert described.origin == (
        "../config.pbtxt: max_batch, timeout_ms, priority, labels; the preset imagenet, a guess;"
        " ../config.pbtxt, not used: instance_group, preferred_batch_size,"
        " max_queue_delay_microseconds, allow_timeout_override"
    )


@pytest.mark.parametrize("action", ["DELAY", "1"])
def test_a_delay_is_no_deadline(model: Path, action: str) -> None:
    configure(model, CONFIG.replace("REJECT", action))
    described = load_description(model, (3, 8, 8))
    assert described.serving.timeout_ms is None
    assert "timeout_action, default_timeout_microseconds" in described.origin


def test_what_is_beyond_our_limits_is_said(model: Path) -> None:
    text = CONFIG.replace("max_batch_size: 4", "max_batch_size: 65")
    text = text.replace("priority_levels: 3", "priority_levels: 10")
    configure(model, text.replace("default_priority_level: 3", "default_priority_level: 10"))
    described = load_description(model, (3, 8, 8))
    assert described.serving == Serving(max_batch=64, timeout_ms=2.5, priority=9)
    assert "max_batch_size above 64, priority_levels above 9" in described.origin
    configure(model, "max_batch_size: 64 dynamic_batching { priority_levels: 9 }")
    assert "not used" not in load_description(model, (3, 8, 8)).origin


def test_what_only_triton_knows_of_tensors_and_levels_is_said(model: Path) -> None:
    batching = "dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 9 } } }"
    configure(model, "input { reshape { shape: [ 3, 8, 8 ] } } output { name: 'y' }" + batching)
    origin = load_description(model, (3, 8, 8)).origin
    assert "config.pbtxt, not used: reshape, priority_queue_policy" in origin


def test_a_model_without_batches_takes_one_image(model: Path) -> None:
    configure(model, "max_batch_size: 0")
    assert load_description(model, (3, 8, 8)).serving == Serving(max_batch=1)


def test_the_description_overrides_it(model: Path) -> None:
    configure(model, CONFIG)
    model.with_suffix(".toml").write_text("max_batch = 2\ntimeout_ms = 100\npriority = 1\n")
    described = load_description(model, (3, 8, 8))
    assert described.serving == Serving(max_batch=2, timeout_ms=100, priority=1)
    assert "config.pbtxt says otherwise: max_batch, timeout_ms, priority" in described.origin


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "a {",
        "a: [1",
        "a",
        "} a: 1",
        'a: "open',
        "a: £",
        "a { " * 10_000,
        "max_batch_size: -1",
        "output: 3",
        "dynamic_batching: [4]",
        "dynamic_batching { default_queue_policy: 1 }",
    ],
)
def test_what_is_no_configuration_is_named(model: Path, text: str) -> None:
    configure(model, text)
    with pytest.raises(PreprocessingError, match=r"config\.pbtxt"):
        load_description(model, (3, 8, 8))


def test_labels_that_are_missing_are_an_error_unless_others_are_set(model: Path) -> None:
    configure(model, CONFIG)
    (model.parents[1] / "flowers.txt").unlink()
    with pytest.raises(PreprocessingError, match=r"config\.pbtxt: the labels cannot be read from"):
        load_description(model, (3, 8, 8))
    (model.parent / "own.txt").write_text("a\nb\n")
    model.with_suffix(".toml").write_text('labels = "own.txt"')
    assert load_description(model, (3, 8, 8)).preprocessing.labels == ("a", "b")


@pytest.mark.parametrize(
    ("names", "labels", "says"),
    [
        (
            "daisy\n",
            ("daisy",),
            "has 1 labels, but the model has 2 classes; as in Triton, the other",
        ),
        ("daisy\nrose\ntulip\n", ("daisy", "rose"), "has 3 labels, but the model has 2 classes"),
    ],
)
def test_a_label_file_need_not_name_every_class(
    model: Path,
    names: str,
    labels: tuple[str, ...],
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    configure(model, CONFIG)
    model.parent.with_name("flowers.txt").write_text(names)
    weights = numpy_helper.from_array(np.ones((2, 3, 1, 1), np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("GlobalAveragePool", ["c"], ["m"]),
            helper.make_node("Flatten", ["m"], ["y"]),
        ],
        "flowers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [weights],
    )
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), model)
    assert load_classifier(model).preprocessing.labels == labels
    assert says in caplog.text
