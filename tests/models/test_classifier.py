"""A classifier from its file: what is one, and what is not."""

from pathlib import Path

import pytest
from onnx import parser

from models import UnsupportedModelError, load_classifier
from models.errors import PreprocessingError


def save(path: Path, body: str) -> Path:
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[N,3,8,8] x) => (float[N,3,h,w] y) {{ {body} }}"""
    )
    path.write_bytes(model.SerializeToString())
    return path


def test_an_output_that_is_no_vector_is_refused_for_what_it_is(tmp_path: Path) -> None:
    path = save(tmp_path / "backbone.onnx", "y = Relu(x)")
    with pytest.raises(UnsupportedModelError, match="gives 3×8×8 values an image"):
        load_classifier(path)


def test_axes_of_one_do_not_matter(tmp_path: Path) -> None:
    assert load_classifier(save(tmp_path / "m.onnx", "y = GlobalAveragePool(x)")).classes == 3


@pytest.mark.parametrize(
    ("preset", "says"), [("imgnet", "Did you mean imagenet?"), ("zzz", '"digits"$')]
)
def test_a_preset_that_is_misspelt_gets_the_nearest(tmp_path: Path, preset: str, says: str) -> None:
    path = save(tmp_path / "m.onnx", "y = GlobalAveragePool(x)")
    with pytest.raises(PreprocessingError, match=says):
        load_classifier(path, overrides={"preset": preset})
