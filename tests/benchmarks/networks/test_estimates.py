"""Estimates of the cost model for whole networks, which are not measurements."""

import pytest

from benchmarks.networks.estimates import estimate_us, main
from benchmarks.networks.light import NETWORKS, classifier
from kernels.device.gpus import H200
from kernels.problems.precision import Precision

# In TF32 15% less than by mma.sync alone: 281.8 and 789.4 µs (docs/decisions/tensor-copies.md).
MOST_US = {
    (Precision.FP16, 1): 160,
    (Precision.FP16, 8): 350,
    (Precision.TF32, 1): 0.85 * 281.8,
    (Precision.TF32, 8): 0.85 * 789.4,
}


def test_resnet_50_takes_no_longer_than_hoppers_kernels_are_for() -> None:
    network = classifier("ResNet-50", NETWORKS["ResNet-50"]())
    for (precision, n), most in MOST_US.items():
        assert estimate_us(network, precision, n, H200) <= most, (precision, n)


def test_precisions_that_a_gpu_lacks_have_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    main(["SqueezeNet", "--gpu", "t4"])
    shown = capsys.readouterr().out
    assert "fp32" in shown
    assert "fp16" in shown
    assert "tf32" not in shown


def test_a_table_of_estimates_names_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    main(["SqueezeNet", "--precision", "fp16", "--gpu", "h100"])
    shown = capsys.readouterr().out
    assert "H100" in shown
    assert "SqueezeNet" in shown
    with pytest.raises(SystemExit):
        main(["Squeeze"])
    assert "networks are VGG-19" in capsys.readouterr().err
