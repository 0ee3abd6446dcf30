"""Networks with attention run on kernels, with the same scores as on the CPU, at every N."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cusim.build import FAST
from cusim.device import CusimDevice
from kernels.device.gpus import H200
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import heuristic
from models import DeviceKind, open_engine
from models.classifier import Classifier, load_classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.tolerance import network_tolerance, relative_error
from models.graph import Attention, Constant
from models.lowering import lower
from models.plan import build_plan
from tests.support.models.attention import HEADS, SIZE, TOKENS, attention
from tests.support.models.engines import preprocessing_of
from tests.support.models.graphs import GraphBuilder

LARGE = 68
"""The side of images with 289 tokens, which is more keys than a block of attention can hold."""


def of_side(folder: Path, side: int) -> Classifier:
    path = folder / "vit.onnx"
    path.write_bytes(attention("N", side=side).SerializeToString())
    return load_classifier(path, overrides={"preset": "imagenet", "resize": side})


@pytest.fixture
def vit(tmp_path: Path) -> Classifier:
    return of_side(tmp_path, SIZE)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32, Precision.FP16])
@pytest.mark.parametrize(("side", "most"), [(SIZE, 8), (LARGE, 2)])
def test_attention_on_kernels_has_the_scores_of_the_cpu(
    side: int, most: int, precision: Precision, tmp_path: Path
) -> None:
    vit = of_side(tmp_path, side)
    images = np.random.default_rng(0).integers(0, 256, (most, side, side, 3)).astype(np.uint8)
    assert not vit.network.no_kernels
    cpu = open_engine(vit, device=DeviceKind.CPU, max_batch=most)
    expected = cpu.run(images).scores
    cpu.close()
    classifier = replace(vit, precision=precision)
    device = CusimDevice(FAST)
    engine = CudaEngine(classifier, device, max_batch=most, choose=heuristic(device))
    engine.warm_up()
    together = engine.run(images).scores
    bound = network_tolerance(classifier.rewritten.graph, heuristic(device))
    assert relative_error(together, expected) < bound
    assert np.array_equal(engine.run(images[::-1].copy()).scores[::-1], together)
    assert relative_error(engine.run(images[1:2]).scores, expected[1:2]) < bound
    engine.close()
    device.close()


def test_one_token_is_a_row() -> None:
    """SigLIP pools all tokens with one query."""
    b = GraphBuilder(x=(3, 2, 2), k=(2, 4, 6))
    q = b.reshape("q", b.gemm("g", b.reshape("f", "x", (1, 12)), 12), (2, 1, 6))
    heads = b.add(Attention, "a", (2, 1, 6), q=q, k="k", v="k")
    joined = b.reshape("j", b.transpose("t", heads, 1, 0, 2), (1, 12))
    b.reshape("y", b.gemm("z", joined, 5), (5,))
    graph = b.build("y")
    constant = Constant(name="k", output="k", weight=b.noise("keys", (2, 4, 6)))
    graph = replace(
        graph,
        inputs=("x",),
        nodes=(constant, *graph.nodes),
        weights=b.weights,
    )
    tape = lower(graph, preprocessing_of((3, 2, 2)), 1, heuristic(H200))
    kernels = [step.launch.instantiation.kernel for step in tape.steps]
    assert kernels.count("linear") == 2


def test_nothing_is_copied_between_the_layers_and_attention(vit: Classifier) -> None:
    """Attention reads heads, and queries next to keys and values, from the preceding layer's
    output."""
    plan = build_plan(vit.rewritten.graph, vit.preprocessing, 2, heuristic(H200))
    kernels = [step.launch.instantiation.kernel for step in plan.steps]
    at = kernels.index("attention")
    assert kernels[at - 1].startswith("conv_")
    assert kernels[at:] == ["attention", "reduce", "linear", "top_k"]


@pytest.mark.parametrize(
    ("precision", "kernel"), [(Precision.FP32, "product"), (Precision.FP16, "product_tensor")]
)
def test_over_many_tokens_attention_is_two_products_and_a_softmax(
    precision: Precision, kernel: str, tmp_path: Path
) -> None:
    vit = replace(of_side(tmp_path, LARGE), precision=precision)
    plan = build_plan(vit.rewritten.graph, vit.preprocessing, 1, heuristic(H200))
    found = [step for step in plan.steps if step.launch.instantiation.kernel == kernel]
    assert [step.cost.precision for step in found] == [precision] * 2
    assert "softmax" in [step.launch.instantiation.kernel for step in plan.steps]


def test_an_attention_has_an_exponential_for_each_score(vit: Classifier) -> None:
    plan = build_plan(vit.rewritten.graph, vit.preprocessing, 3, heuristic(H200))
    found = {step.launch.instantiation.kernel: step.cost.exponentials for step in plan.steps}
    assert {kernel: count for kernel, count in found.items() if count} == {
        "attention": 3 * HEADS * TOKENS**2
    }
