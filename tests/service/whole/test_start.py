"""What a server loads before its first answer: nothing that serving does not need."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from kernels.device.driver import has_driver
from models import BUILT_IN_MODEL
from tests.support import ROOT

# Each takes 0.1 s or more to import: what converts models, draws, or speaks to a GPU.
HEAVY = {"cupy", "matplotlib", "models.engines.cuda_engine", "models.plan", "onnx_ir", "onnxscript"}
HEAVY |= {"rich", "sympy"}


def imported_until_the_first_answer(home: Path) -> set[str]:
    """Names the modules that `convoy serve` imports until it has classified an image."""
    program = "from service.cli import main; main()"
    command = [sys.executable, "-X", "importtime", "-c", program, "serve", "--port", "0"]
    environment = {**os.environ, "HOME": str(home)}
    with (home / "imports.txt").open("w+") as log:
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+?:\d+", server.stdout.readline())
            assert found, (home / "imports.txt").read_text()
            image = (BUILT_IN_MODEL.parent / "samples" / "3_ink_on_paper.jpg").read_bytes()
            asked = Request(f"{found[0]}/v1/classify", image, {"Content-Type": "image/jpeg"})
            with urlopen(asked, timeout=60) as answer:
                assert b'"3"' in answer.read()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
            server.stdout.close()
    text = (home / "imports.txt").read_text()
    return set(re.findall(r"^import time:.*\| +([\w.]+)$", text, re.MULTILINE))


@pytest.mark.skipif(has_driver(), reason="a GPU serves here, which needs CuPy and the planner")
def test_a_second_start_imports_nothing_that_serving_does_not_need(tmp_path: Path) -> None:
    assert "onnx_ir" in imported_until_the_first_answer(tmp_path)
    assert not imported_until_the_first_answer(tmp_path) & HEAVY
