"""Before its first answer, a server loads only the modules that serving needs."""

import json
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
from tests.support import PATIENCE_S, ROOT

# What reads, converts and checks models, draws, or speaks to a GPU. A second start imports none of
# these in any process; the process that serves never does, nor what only reading takes.
HEAVY = {"cupy", "matplotlib", "models.engines.cuda_engine", "models.plan", "onnx_ir", "onnxscript"}
HEAVY |= {"rich", "sympy", "yaml"}
READING = {
    "google.protobuf",
    "models.as_given",
    "models.classifier",
    "models.engines.prove",
    "onnx",
}
READING |= {"models.onnx_loader", "models.rewrite", "service.hosting.reading"}

# Writes what any process imports, and as it ends the modules of the one that serves.
PROGRAM = """
import atexit, json, os, sys
log = os.open("imports.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)

def write(event, arguments):
    if event == "import":
        os.write(log, arguments[0].encode() + b"\\n")

sys.addaudithook(write)
atexit.register(lambda: json.dump(sorted(sys.modules), open("modules.json", "w")))
sys.path.insert(0, %r)
from service.cli import main
main()
"""


def imported_until_the_first_answer(home: Path) -> tuple[set[str], set[str]]:
    """Return the modules that `convoy serve` imports until it has classified an image: in all its
    processes, and in the process that serves."""
    program = PROGRAM % str(ROOT)
    command = [sys.executable, "-c", program, "serve", "--port", "0"]
    environment = {**os.environ, "HOME": str(home)}
    with (home / "log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+?:\d+", server.stdout.readline())
            assert found, (home / "log").read_text()
            image = (BUILT_IN_MODEL.parent / "samples" / "3_ink_on_paper.jpg").read_bytes()
            asked = Request(f"{found[0]}/v1/classify", image, {"Content-Type": "image/jpeg"})
            with urlopen(asked, timeout=PATIENCE_S) as answer:
                assert b'"3"' in answer.read()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(PATIENCE_S)
            server.stdout.close()
    imported = set((home / "imports.txt").read_text().split())
    return imported, set(json.loads((home / "modules.json").read_text()))


@pytest.mark.skipif(has_driver(), reason="a GPU serves here, which needs CuPy and the planner")
def test_a_second_start_imports_nothing_that_serving_does_not_need(tmp_path: Path) -> None:
    imported, serving = imported_until_the_first_answer(tmp_path)
    assert imported >= {"onnx", "onnx_ir", "service.hosting.reading"}
    assert not serving & (HEAVY | READING)
    imported, serving = imported_until_the_first_answer(tmp_path)
    assert not imported & HEAVY
    assert not serving & (HEAVY | READING)
    assert "service.api.app" in serving


# What neither process needs, in the order in which one interpreter imports them: first the process
# that reads models, whose modules are fewer, and then the one that serves.
NEEDLESS = {
    "service.hosting.reading": {"fastapi", "service.hosting.pipeline", "yaml"},
    "service.cli.listen": {"fastapi", "opentelemetry.sdk", "service.api.app", "yaml"},
}


def test_neither_process_of_a_start_waits_for_modules_that_it_does_not_need() -> None:
    look = f"import importlib, sys\nfor module, others in {NEEDLESS!r}.items():\n"
    look += "    importlib.import_module(module)\n    print(module, *others & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == list(NEEDLESS)
