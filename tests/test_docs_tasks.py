"""The ten tasks of docs/tasks.md: each runs as a script, as a newcomer would type it."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import onnx
import pytest

from benchmarks.networks.light import light_network
from benchmarks.serving.http_client import free_port
from tests.support import ROOT

PAGE = (ROOT / "docs/tasks.md").read_text(encoding="utf-8")
OTHERS = [
    page.read_text(encoding="utf-8")
    for page in (
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
    )
    if page.name != "tasks.md"
]
TASKS = {
    title: [line.strip() for line in re.findall(r"(?m)^    (.+)$", text)]
    for title, text in re.findall(r"(?ms)^## (.+?)\n(.*?)(?=^## |\Z)", PAGE)
}

# What the script prints once the task is done.
DONE = {
    "Ask from Python": r"'label': '\d'",
    "Serve an ImageNet model": r'"model":"squeezenet1.1","results":\[\{"predictions":\[\{"index"',
    "Use labels of your own": r'"label":"flower \d+"',
    "Move a client of Triton over": r"\(1, 1000\)",
    "Put it in a container with an API key": r'"predictions"',
    "Find the p99 by phase": r"(?s)in the server .*decode ms.*\np99 +\d",
    "Find the highest rate under 50 ms": r"highest rate with p99 within .* ms and no errors: \d",
    "Export from PyTorch": r"3 of 3 labels agree",
    "See which layers cost most": r"(?s)GFLOP.*MFLOP",
    "Report a bug": r"(?s)convoy \d+\.\d+.*\"flops\"",
}

# A task's stand-ins: shorter runs, and weights that are not downloaded.
SHORTER = (
    ("--rate 50", "--rate 60 --duration 3s --warmup 0s"),
    ("--find-rate --p99 50ms", "--find-rate --p99 5s --duration 200ms --warmup 0s"),
)
MAIN = "from service.cli import main; main()"
READY = "http://127.0.0.1:8000/healthz"
ASK = "curl -F file=@cat.jpg http://127.0.0.1:8000/v1/classify"
PACKAGES = {
    **{name: name for name in ("httpx", "onnxscript", "tf2onnx", "torch", "torchvision")},
    "tensorflow-cpu": "tensorflow",
}
"""The modules of the installed packages."""

# A client as Triton's users have it: it normalises, and sends a tensor to the model's own input.
CLIENT = """
import numpy as np
import tritonclient.http as triton

tensor = triton.InferInput("data_0", [1, 3, 224, 224], "FP32")
tensor.set_data_from_numpy(np.zeros((1, 3, 224, 224), np.float32))
client = triton.InferenceServerClient("127.0.0.1:8000")
print(client.infer("squeezenet", [tensor]).as_numpy("{}").shape)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model and its labels, photographs, Triton's models, and programs for
    the tasks."""
    for name in ("service", "models", "docker-compose.yml", "Dockerfile"):
        (tmp_path / name).symlink_to(ROOT / name)
    model = light_network("squeezenet")
    onnx.save(model, tmp_path / "flowers.onnx")
    labels = "\n".join(f"flower {number}" for number in range(1000))
    (tmp_path / "labels.txt").write_text(labels)
    place = tmp_path / "model_repository/squeezenet/1"
    place.mkdir(parents=True)
    shutil.copy(tmp_path / "flowers.onnx", place / "model.onnx")
    photographs = ROOT / "service/api/page/photographs"
    shutil.copytree(photographs, tmp_path / "photos", ignore=shutil.ignore_patterns("*.md"))
    shutil.copy(photographs / "cat.jpg", tmp_path / "cat.jpg")
    (tmp_path / "ask.py").write_text(code_of("docs/http-api.md"))
    (tmp_path / "export.py").write_text(
        code_of("docs/from-pytorch.md").replace('"DEFAULT"', "None")
    )
    (tmp_path / "client.py").write_text(CLIENT.replace("{}", model.graph.output[0].name))
    (tmp_path / "bin").mkdir()
    for name, arguments in (("convoy", f"-c '{MAIN}'"), ("python", "")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        program.chmod(0o755)
    return tmp_path


@pytest.fixture
def catalogue(folder: Path) -> Iterator[Path]:
    """Yield a catalogue whose squeezenet1.1 is on a server of this machine."""
    data = (folder / "flowers.onnx").read_bytes()
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        file = folder / "catalogue.toml"
        file.write_text(
            f'["squeezenet1.1"]\nurl = "http://127.0.0.1:{listening.server_port}/flowers.onnx"\n'
            f'sha256 = "{hashlib.sha256(data).hexdigest()}"\nbytes = {len(data)}\n'
            'licence = "none"\npreset = "caffe"\n'
        )
        yield file
        listening.shutdown()
        thread.join()


def code_of(page: str) -> str:
    """Return the first Python example of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    example = re.search(r"\n((?:    .*\n|\n)*    import (?:.*\n)(?:    .*\n|\n)*)", text)
    assert example
    return re.sub("(?m)^    ", "", example[1])


def script(commands: list[str], port: int) -> str:
    """Return the shortened commands; after a command in the background, the next waits until it is
    ready."""
    lines = ["set -e", "trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT"]
    for command in commands:
        if command.startswith("pip install "):
            continue
        lines.append(command)
        if command.endswith("&"):
            lines.append(f"until curl -sf {READY}; do kill -0 $!; sleep 0.1; done")
    text = "\n".join(lines).replace(":8000", f":{port}")
    for long, short in SHORTER:
        text = text.replace(long, short)
    return text


def docker_answers() -> bool:
    """Return whether a daemon can build and run the image."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


def test_there_are_ten_tasks_of_at_most_five_commands() -> None:
    assert list(TASKS) == list(DONE)
    assert all(1 <= len(commands) <= 5 for commands in TASKS.values())


@pytest.mark.parametrize("title", DONE)
def test_every_command_of_a_task_is_explained_on_another_page(title: str) -> None:
    for command in TASKS[title]:
        name, *rest = re.sub(r"^(\w+=\S+ )+", "", command.removesuffix(" &")).split()
        subcommand = f"{name} {rest[0]}" if name in ("convoy", "docker", "pip") else name
        assert any(subcommand in page for page in OTHERS), subcommand
        for flag in re.findall(r" (--[a-z0-9-]+)", command):
            assert any(flag in page for page in OTHERS), flag


def run(commands: list[str], folder: Path, catalogue: Path) -> str:
    """Return the output of the commands; skip the test if they need a missing package or
    program."""
    if "docker" in " ".join(commands) and not docker_answers():
        pytest.skip("needs Docker, which is not running")
    packages = {word for each in commands if each.startswith("pip ") for word in each.split()[2:]}
    if missing := [name for name in packages if importlib.util.find_spec(PACKAGES[name]) is None]:
        pytest.skip(f"needs {' and '.join(missing)}, not installed here")
    port = free_port()
    for program in folder.glob("*.py"):
        program.write_text(program.read_text().replace(":8000", f":{port}"))
    done = subprocess.run(
        ["bash", "-c", script(commands, port)],
        cwd=folder,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("CONVOY_")},
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONSAFEPATH": "1",
            "HOME": str(folder),
            "NO_PROXY": "127.0.0.1",
            "CONVOY_CATALOGUE": str(catalogue),
            "CONVOY_DEVICE": "cpu",
            "CONVOY_PORT": str(port),
            "CONVOY_THREADS": "1",
            "CONVOY_MAX_BATCH": "2",  # the warm-up runs each size of a batch
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


# What they start is started by other tasks too, and takes long: load tests and reports. The first
# task's program is run by tests/test_docs.py, and its server by tests/test_start.py.
LONG = {
    "Ask from Python",
    "Find the p99 by phase",
    "Find the highest rate under 50 ms",
    "See which layers cost most",
    "Report a bug",
}


@pytest.mark.parametrize(
    "title",
    [pytest.param(title, marks=[pytest.mark.slow] * (title in LONG)) for title in DONE],
)
def test_a_task_ends_as_it_should(title: str, folder: Path, catalogue: Path) -> None:
    assert re.search(DONE[title], run(TASKS[title], folder, catalogue))


def test_a_network_of_keras_is_exported_checked_and_served(folder: Path, catalogue: Path) -> None:
    page = (ROOT / "docs/from-keras.md").read_text(encoding="utf-8")
    code = code_of("docs/from-keras.md").replace("MobileNetV2()", "MobileNetV2(weights=None)")
    (folder / "export.py").write_text(code)
    *_, toml = re.findall(r"\n((?:    \w+ = .*\n)+)", page)
    (folder / "mobilenet.toml").write_text(re.sub("(?m)^    ", "", toml))
    install, check, serve = re.findall(r"(?m)^    ((?:pip|convoy) .*)$", page)
    told = run([install, "python export.py", check, f"{serve} &", ASK], folder, catalogue)
    assert "3 of 3 labels agree" in told
    assert '"model":"mobilenet","results":[{"predictions":[' in told
