"""Pinned exporters are installed, and answers for their models are never wrong without a
warning."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.environments import NotInstalledError
from benchmarks.exporters.__main__ import PHOTOGRAPHS, RECORDINGS, export, installed
from benchmarks.exporters.catalogue import EXPORTERS, Exporter
from benchmarks.exporters.check import ARE_RIGHT, REFUSED, WRONG, check

SOURCES = ("pytorch-old-logits", "pytorch-old-separable")
"""Recorded float models, which quantizers read."""


@pytest.mark.slow
@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda exporter: exporter.name)
def test_what_an_exporter_writes_is_right_or_says_what_is_not(
    exporter: Exporter, tmp_path: Path
) -> None:
    console = Console()
    try:
        installed(exporter, console)
    except NotInstalledError as error:
        pytest.skip(f"{exporter.name} cannot be installed here: {error}")
    for source in SOURCES:
        shutil.copytree(RECORDINGS / source, tmp_path / source)
    assert not export(tmp_path, [exporter.name], console)
    found = [each for each in check(tmp_path, PHOTOGRAPHS) if each.model not in SOURCES]
    assert [each for each in found if each.outcome == WRONG] == []
    assert any(each.outcome in (*ARE_RIGHT, REFUSED) for each in found)
