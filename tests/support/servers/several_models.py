"""Creates a folder of two models, and runs a real `convoy serve` with it in a separate process."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save_model

from models import BUILT_IN_MODEL
from tests.support import PATIENCE_S
from tests.support.servers.forked import CONVOY, Forked

SAMPLES = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())
CHANNELS = "channels.v2"

_DESCRIPTION = """
preset = "imagenet"
crop_mode = "squash"
scale = 1
mean = [0, 0, 0]
std = [1, 1, 1]
labels = "names.txt"
"""


def make_models(folder: Path) -> Path:
    """Create two models in the folder: `digits`, unchanged, and CHANNELS. The scores of CHANNELS
    are the means of an image's channels.

    CHANNELS has the layout of a Triton model with versions 1 and 3. Version 1 is broken.
    """
    digits = folder / "digits"
    digits.mkdir(parents=True)
    shutil.copy(BUILT_IN_MODEL, digits / "model.onnx")
    shutil.copy(BUILT_IN_MODEL.with_suffix(".toml"), digits / "model.toml")
    shutil.copy(BUILT_IN_MODEL.with_name("labels.txt"), digits)
    for version in ("1", "3"):
        place = folder / CHANNELS / version
        place.mkdir(parents=True)
        if version == "1":
            (place / "model.onnx").write_text("this is no model")
            continue
        save_channels(place / "model.onnx")
        (place / "model.toml").write_text(_DESCRIPTION)
        (place / "names.txt").write_text("red\ngreen\nblue\n")
    (folder / ".hidden").mkdir()
    (folder / "README").write_text("not a model")
    return folder


def save_channels(path: Path, height: int = 4, width: int = 6) -> None:
    """Save a network that returns the mean of each channel. It takes images of N×3×height×width."""
    weights = numpy_helper.from_array(np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("GlobalAveragePool", ["c"], ["m"]),
            helper.make_node("Flatten", ["m"], ["amount"]),
        ],
        "channels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, height, width])],
        [helper.make_tensor_value_info("amount", TensorProto.FLOAT, ["N", 3])],
        [weights],
    )
    opset = helper.make_opsetid("", 17)
    save_model(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


@contextmanager
def convoy_serve(*arguments: str | Path) -> Iterator[int]:
    """Run `convoy serve`, and yield its port. If the server still runs after the block, kill it."""
    with announced(*arguments) as line:
        port = re.search(r" at http://127\.0\.0\.1:(\d+) ", line)
        assert port, line
        yield int(port[1])


@contextmanager
def announced(*arguments: str | Path, program: str = CONVOY) -> Iterator[str]:
    """Run `convoy serve`, and yield the first line that it prints. If the server still runs after
    the block, kill it."""
    process = Forked(program, "serve", *arguments, "--port", "0", "--threads", "1")
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
