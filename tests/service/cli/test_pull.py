"""`convoy pull`, and the other commands that accept a model's name."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from itertools import product
from pathlib import Path
from socket import socket

import pytest

from models import BUILT_IN_MODEL
from service.hosting import download
from tests.support.command_line import Run
from tests.support.servers.answering import answering, send_part
from tests.support.servers.fake_hub import COMMIT, FakeHub, fake_hub

SAMPLE = BUILT_IN_MODEL.parent / "samples" / "7_faint_on_grey.jpg"
LABELS = [f"flower {number}" for number in range(10)]
NAME = "hf://maker/flowers"


@pytest.fixture
def flowers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    config = json.dumps({"id2label": dict(enumerate(LABELS))}).encode()
    files = {"config.json": config, "onnx/model.onnx": BUILT_IN_MODEL.read_bytes()}
    with fake_hub(files) as running:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", "")
        yield running


def test_a_model_of_a_hub_is_pulled_and_the_line_to_serve_it_is_right(
    convoy: Run, flowers: FakeHub, tmp_path: Path
) -> None:
    path = tmp_path / f".cache/convoy/hub/maker/flowers/{COMMIT}/onnx/model.onnx"
    said = f"{NAME} is in {path}; serve it with: convoy serve {NAME}\n"
    status, out, error = convoy("pull", NAME)
    assert (status, out) == (0, said)
    assert "model.onnx" in error  # the bar
    assert convoy("pull", NAME) == (0, said, "")


def test_commands_that_take_a_model_take_one_of_a_hub(
    convoy: Run, flowers: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = convoy("classify", NAME, SAMPLE, "--json")
    assert status == 0
    assert json.loads(out)["predictions"][0]["label"] == "flower 7"
    assert flowers.paths.count("onnx/model.onnx") == 1
    flowers.asked.clear()
    status, out, _ = convoy("check", NAME, SAMPLE)
    assert status == 0
    assert "flowers on cpu" in out
    assert len(flowers.asked) == 1  # so that both compute the same commit
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, out, _ = convoy("inspect", NAME)
    assert status == 0
    assert "config.json: labels" in out
    assert len(flowers.asked) == 1


IN_THE_FORM_OF_SERVE = "`convoy serve` (the built-in model) and `convoy serve path.onnx` (your"


@pytest.mark.parametrize(
    ("model", "failure"),
    [
        *product(("listed", NAME), ("no host", "no TLS", "404", "503", "another file")),
        (NAME, "offline"),
    ],
)
@pytest.mark.parametrize(
    ("command", "environ", "says"),
    [
        (["serve", "MODEL"], {}, IN_THE_FORM_OF_SERVE),
        (["pull", "MODEL"], {}, IN_THE_FORM_OF_SERVE),
        (["demo", "MODEL"], {}, "`convoy demo` (the built-in model) and `convoy demo path.onnx`"),
        (
            ["serve", "MODEL"],
            {"CALLED_BY_MAKE": "yes"},
            "`make serve` (the built-in model) and `make serve MODEL=path.onnx` (your own file)",
        ),
        (
            ["serve"],
            {"CONVOY_MODEL": "MODEL", "CALLED_BY_MAKE": "yes"},
            "`CONVOY_MODEL=` (the built-in model) and `CONVOY_MODEL=path.onnx` (your own file)",
        ),
        (["classify", "MODEL", SAMPLE], {}, "`digits` (the built-in model) and `path.onnx`"),
    ],
)
def test_where_a_download_fails_the_error_ends_with_what_works_now(
    convoy: Run,
    flowers: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: list[str | Path],
    environ: dict[str, str],
    says: str,
    model: str,
    failure: str,
) -> None:
    def address() -> str:
        with socket() as closed:
            closed.bind(("127.0.0.1", 0))
            return f"http://127.0.0.1:{closed.getsockname()[1]}"

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if failure.isdecimal():
            handler.send_error(int(failure))
        else:
            send_part(handler, b"<html>sign in</html>", 0, 20)

    monkeypatch.setattr(download, "_PAUSE_S", 0.0)
    catalogue = tmp_path / "more.toml"
    monkeypatch.setenv("CONVOY_CATALOGUE", str(catalogue))
    for key, value in environ.items():
        monkeypatch.setenv(key, value.replace("MODEL", model))
    monkeypatch.setenv("HF_HUB_OFFLINE", str(int(failure == "offline")))
    with answering(answer) as server:
        url = address() if failure == "no host" else server
        url = url.replace("http:", "https:") if failure == "no TLS" else url
        monkeypatch.setenv("HF_ENDPOINT", url)
        entry = {"url": f"{url}/x.onnx", "sha256": "0" * 64, "licence": "MIT", "preset": "digits"}
        fields = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
        catalogue.write_text(f"[listed]\n{fields}bytes = 20\n", encoding="utf-8")
        port = ["--port", "0"] if command[0] in ("serve", "demo") else []
        words = [model if word == "MODEL" else word for word in command]
        status, out, error = convoy(*words, *port)
    assert (status, out) == (1, "")
    *_, line = error.splitlines()  # behind the bar
    assert line.startswith("Error: ")
    assert f". These work now: {says}" in line


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("pull", "hf://flowers"), "hf://flowers: an address on a hub must be hf://ORG/NAME"),
        (("classify", "hf://maker/_x", SAMPLE), "hf://maker/_x: invalid model name '_x'"),
        (("pull", "hf://maker/shrubs"), "answers 404 Not Found; check the names of the repository"),
        (("pull", f"{NAME}/other.onnx"), "has no model other.onnx; it has onnx/model.onnx"),
        (("pull", "squeezenet"), "the catalogue has no model squeezenet; did you mean"),
    ],
)
def test_what_cannot_be_had_is_one_line_and_status_1(
    convoy: Run, flowers: FakeHub, command: tuple[str | Path, ...], says: str
) -> None:
    status, _, error = convoy(*command)
    assert status == 1
    (line,) = error.splitlines()
    assert says in line
