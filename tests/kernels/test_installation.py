"""Advice on what to install, for each way in which Convoy is installed."""

import sys
from pathlib import Path

import pytest

from kernels.installation import Installation, how_to_install, installation


def test_a_checkout_a_wheel_and_an_image_are_told_apart(tmp_path: Path) -> None:
    assert installation() is Installation.CHECKOUT
    assert installation(root=tmp_path, prefix=tmp_path) is Installation.TOOL
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/pip").touch()
    assert installation(root=tmp_path, prefix=tmp_path) is Installation.WHEEL
    (tmp_path / "sbom.cdx.json").touch()
    assert installation(root=tmp_path, prefix=tmp_path) is Installation.IMAGE


@pytest.mark.parametrize(
    ("kind", "extra", "advice"),
    [
        (
            Installation.CHECKOUT,
            "otel",
            f"run {sys.prefix}/bin/pip install -c constraints.txt -e '.[otel]'",
        ),
        (Installation.WHEEL, "otel", f"run {sys.prefix}/bin/pip install 'convoy-inference[otel]'"),
        (
            Installation.TOOL,
            "grpc",
            "run convoy by uvx --from 'convoy-inference[grpc]', or install",
        ),
        (Installation.IMAGE, "cuda13", "use an image built with --build-arg EXTRA=cuda13"),
        (
            Installation.IMAGE,
            "loadtest",
            "the image has no extra loadtest: run Convoy from a wheel",
        ),
    ],
)
def test_the_advice_can_be_followed(kind: Installation, extra: str, advice: str) -> None:
    assert how_to_install(extra, kind).startswith(advice)
