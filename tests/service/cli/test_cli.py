"""The command line: its output and its errors."""

import errno
import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.networks.c3d import C3D, c3d
from models import BUILT_IN_MODEL, EngineError, ModelFileError
from service import cli
from service.cli import listen as serving
from service.http.server import ListenError, bind
from service.settings import Settings, SettingsError
from tests.support.command_line import Run
from tests.support.servers.several_models import make_models

SAMPLES = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Return the file of a model for clips of 3 frames."""
    path = tmp_path / "clips.onnx"
    network = C3D(clip=(3, 8, 12), filters=(4,), hidden=4, classes=2)
    path.write_bytes(c3d(network).SerializeToString())
    return path


def test_the_version_is_that_of_the_package(convoy: Run) -> None:
    status, out, _ = convoy("--version")
    assert status == 0
    assert re.fullmatch(r"convoy \d+\.\d+\.\d+\n", out)


def test_every_command_in_the_list_can_be_imported_and_says_what_it_does(convoy: Run) -> None:
    for name in cli._COMMANDS:
        status, out, _ = convoy(name, "--help")
        assert status == 0
        assert f"convoy {name} [" in out


@pytest.mark.parametrize("command", [(), ("serve",), ("classify",)])
def test_help_tells_every_command_and_flag(convoy: Run, command: tuple[str, ...]) -> None:
    status, out, _ = convoy(*command, "--help")
    assert status == 0
    if not command:
        assert all(f"\n  {name} " in out for name in cli._COMMANDS)
    else:
        for flag in ("--preset", "--labels", "--device <auto|cuda|cpu>", "--threads"):
            assert flag in out
    if command == ("serve",):
        for name, field in Settings.model_fields.items():
            assert name == "model" or f"--{name.replace('_', '-')} " in out
            assert field.description
        assert "Port to listen on [8000]" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--prot", "1"], "No such option: --prot"),
        (["serve", "--port", "http"], "--port: http is not allowed; it must be a whole number"),
        (["serve", "--port", "99999"], "Error: --port: 99999 is not allowed"),
        (["serve", "--max-batch", "0"], "Error: --max-batch: 0 is not allowed"),
        (
            ["serve", "--device", "gpu"],
            "--device: gpu is not allowed; it must be 'auto'",
        ),
        (["classify", "digits"], "Missing argument"),
        (
            ["classify", "digits", str(SAMPLES[0]), "--top-k", "11"],
            "Error: --top-k: 11 is not allowed",
        ),
        (["sevre"], "No such command"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_status_2(
    convoy: Run, arguments: list[str], says: str
) -> None:
    status, out, error = convoy(*arguments)
    assert (status, out) == (2, "")
    assert says in error
    assert "Error: " in error


def test_an_unknown_key_in_the_environment_ends_with_status_2(
    convoy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVOY_PROT", "8000")
    status, _, error = convoy("serve")
    assert status == 2
    assert error == "Error: CONVOY_PROT is not a setting; did you mean CONVOY_PORT?\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--port", "0", "no/such.onnx"],
        ["serve", "--port", "0", __file__],
        ["classify", "no/such.onnx", str(SAMPLES[0])],
        ["classify", "digits", str(SAMPLES[0]), "--labels", "no/such.txt"],
        ["classify", "digits", str(SAMPLES[0]), "--preset", "imagnet"],
    ],
)
def test_a_model_that_cannot_be_had_ends_with_one_line_and_status_1(
    convoy: Run, arguments: list[str]
) -> None:
    status, out, error = convoy(*arguments)
    assert (status, out) == (1, "")
    (line,) = error.splitlines()
    assert line.startswith("Error: ")


def test_clips_are_classified_and_a_still_image_is_none(
    convoy: Run, clips: Path, tmp_path: Path
) -> None:
    animation = tmp_path / "clip.gif"
    first, *others = [Image.new("L", (12, 8), level) for level in (10, 90, 200)]
    first.save(animation, save_all=True, append_images=others)
    status, out, error = convoy("classify", clips, animation, SAMPLES[0], "--preset", "imagenet")
    assert status == 1
    assert str(animation) in out
    assert f"Error: {SAMPLES[0]}: a single still image is not a clip" in error


def test_a_port_in_use_ends_with_one_line_and_status_1(convoy: Run) -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        status, out, error = convoy("serve", "--port", str(port))
    assert (status, out) == (1, "")
    (line,) = error.splitlines()
    assert line.startswith(f"Error: cannot listen on 127.0.0.1 port {port}: ")
    assert "--port" in line


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SettingsError("x"), 2),
        (ListenError("x"), 1),
        (EngineError("x"), 1),
        (ModelFileError("x"), 1),
    ],
)
def test_what_is_foreseen_to_go_wrong_is_a_line_and_a_status(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(serving, "run_server", fail)
    assert convoy("serve", "--port", "0") == (status, "", "Error: x\n")


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (BlockingIOError(errno.EAGAIN, "x"), "threads and processes (ulimit -u, pids.max)"),
        (RuntimeError("can't start new thread"), "threads and processes (ulimit -u, pids.max)"),
        (OSError(errno.EMFILE, "x"), "open files (ulimit -n)"),
    ],
)
def test_a_limit_of_the_system_is_named(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, limit: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(serving, "run_server", fail)
    expected = f"Error: {error}: the system allows no more {limit}\n"
    assert convoy("serve", "--port", "0") == (1, "", expected)


def test_classify_prints_a_table_of_files_labels_and_probabilities(convoy: Run) -> None:
    status, out, error = convoy("classify", "digits", *SAMPLES)
    assert (status, error) == (0, "")
    heading, *rows = [line.split() for line in out.splitlines()]
    assert heading == ["file", "label", "probability"]
    for (file, label, probability), sample in zip(rows, SAMPLES, strict=True):
        assert file == str(sample)
        assert label == sample.name[0]
        assert 0.5 < float(probability) <= 1


def test_names_and_labels_are_shown_as_they_are_and_unfolded(
    convoy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    folder = tmp_path / "a[b]" / "x[" / "red]"  # "[/red]", where nothing was opened
    folder.mkdir(parents=True)
    picture = folder / f"{'long' * 20}.jpg"
    picture.write_bytes(SAMPLES[0].read_bytes())
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"[bold]{n}[/x]" for n in range(10)))
    status, out, error = convoy("classify", "digits", picture, "--labels", labels)
    assert (status, error) == (0, "")
    assert str(picture) in out
    assert f"[bold]{SAMPLES[0].name[0]}[/x]" in out


def test_a_name_that_is_no_utf8_is_printed_as_well_as_can_be(convoy: Run, tmp_path: Path) -> None:
    picture = tmp_path / "\udcff.png"  # the byte FF
    picture.write_bytes(SAMPLES[0].read_bytes())
    missing = tmp_path / "\udcfe.png"
    status, out, _ = convoy("classify", "digits", "--json", picture, missing)
    shown, failed = map(json.loads, out.splitlines())
    assert (status, shown["file"]) == (1, f"{tmp_path}/\N{REPLACEMENT CHARACTER}.png")
    assert failed["error"] == "No such file or directory"


def test_classify_takes_a_folder_and_says_as_many_labels_as_asked(convoy: Run) -> None:
    status, out, _ = convoy("classify", "digits", SAMPLES[0].parent, "--top-k", "3")
    assert status == 0
    rows = [line.split() for line in out.splitlines()[1:]]
    assert len(rows) == 3 * len(SAMPLES)
    assert [len(row) for row in rows] == [3, 2, 2] * len(SAMPLES)


def test_classify_reports_what_cannot_be_read_and_classifies_the_rest(
    convoy: Run, tmp_path: Path
) -> None:
    text = tmp_path / "text.png"
    text.write_text("this is text")
    missing = tmp_path / "missing.png"
    empty = tmp_path / "empty.jpg"
    empty.touch()
    status, out, error = convoy("classify", "digits", text, SAMPLES[4], missing, empty)
    assert status == 1
    assert out.split()[-2:][0] == SAMPLES[4].name[0]
    lines = error.splitlines()
    for line, file in zip(lines, (text, missing, empty), strict=True):
        assert line.startswith(f"Error: {file}: ")
    assert "No such file" in lines[1]


def test_classify_prints_json_a_line_an_image(convoy: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"bad")
    status, out, _ = convoy("classify", "digits", SAMPLES[7], bad, "--json", "-k", "2")
    assert status == 1
    good, failed = [json.loads(line) for line in out.splitlines()]
    assert good["file"] == str(SAMPLES[7])
    first, _ = good["predictions"]
    assert first["label"] == SAMPLES[7].name[0]
    assert list(failed) == ["file", "error"]


def test_compile_fills_the_cache_and_says_how_many(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where the cache of compiled kernels is
    status, out, _ = convoy("compile", "digits", "--arch", "80", "--max-batch", "1")
    assert status == 0
    (count,) = re.findall(r"(\d+) kernels are compiled", out)
    cubins = [file for file in (tmp_path / ".cache/convoy/cubins").rglob("*") if file.is_file()]
    assert len(cubins) == int(count) >= 5
    status, out, error = convoy("compile", "digits", "--arch", "81")
    assert out == ""
    assert error.startswith("Error: unknown architecture 81")
    assert status == 1
    assert re.search(r"unknown architecture 81; NVRTC [\d.]+ compiles for 75, 80", error)


def test_inspect_shows_a_model_or_its_plan(convoy: Run) -> None:
    status, out, _ = convoy("inspect", "digits")
    assert status == 0
    assert "20 nodes became 11" in out
    status, out, _ = convoy("inspect", "digits", "--plan", "-n", "2", "--gpu", "a100")
    assert status == 0
    assert "digits, N = 2, A100 SXM 80 GB: 12 launches" in out
    status, _, error = convoy("inspect", "digits", "--plan", "--gpu", "voodoo")
    assert status == 2
    assert "voodoo is not known; choose one of t4, a100" in error


def test_a_model_of_clips_is_inspected_and_compiled(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, clips: Path, tmp_path: Path
) -> None:
    status, out, _ = convoy("inspect", clips, "--wide")
    assert status == 0
    assert "Conv N1 C3 3x8x12 K4 3x3x3" in out
    status, out, _ = convoy("inspect", clips, "--plan", "-n", "2")
    assert status == 0
    assert "clips, N = 2, H200 SXM: 7 launches" in out
    monkeypatch.setenv("HOME", str(tmp_path))
    status, out, _ = convoy("compile", clips, "--arch", "80", "--max-batch", "1")
    assert status == 0
    assert "kernels are compiled" in out


def test_any_key_of_a_models_description_can_be_set(convoy: Run) -> None:
    status, _, error = convoy("inspect", "digits", "--set", "size=31")
    assert status == 1
    assert "gives images of 1×31×31" in error
    status, _, error = convoy("inspect", "digits", "--set", "size")
    assert status == 2
    assert "write KEY=VALUE" in error


def test_a_folder_of_models_is_strictly_served_all_or_none(convoy: Run, tmp_path: Path) -> None:
    folder = make_models(tmp_path / "models")
    status, out, error = convoy("serve", folder, "--port", "0", "--default-model", "no")
    assert (status, out) == (2, "")
    assert error == "Error: --default-model: no is not served; the models are channels.v2, digits\n"
    (folder / "digits" / "model.onnx").write_text("this is no model")
    status, out, error = convoy("serve", folder, "--port", "0", "--strict")
    assert (status, out) == (1, "")
    (line,) = error.splitlines()
    assert line.startswith("Error: the model digits: ")
    status, _, error = convoy("serve", folder, "--port", "0", "--set", "size=3")
    assert status == 2
    assert "--preset, --labels and --set need a single model" in error


def test_the_help_of_serve_has_two_lines_an_option_and_the_usual_ones_on_one_screen(
    convoy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, shown, _ = convoy("serve", "--help")
    assert status == 0
    first, *_ = shown.partition("\n\nModels:")
    assert len(first.splitlines()) <= 24
    options = re.split(r"(?m)^  (?=-|model)", shown.partition("Often used:\n")[2])[1:]
    assert len(options) == len(Settings.model_fields) + 3
    for option in options:
        # A flag that is too long for its column has a line of its own.
        lines = option.partition("\n\n")[0].strip().splitlines()
        assert len(lines) <= (3 if not re.search(r"\S  +\S", lines[0]) else 2), option


@pytest.mark.parametrize(
    ("command", "images", "status", "says"),
    [
        *(
            (command, ["nothere.png"], 2, "there is no file or folder nothere.png; name images")
            for command in ("classify", "check", "quantize")
        ),
        ("quantize", [SAMPLES[0]], 1, "1 photograph is too few"),
        ("quantize", [*SAMPLES, *SAMPLES, "no.png"], 2, "there is no file no.png"),
    ],
)
def test_images_are_looked_for_before_a_model_is_loaded(
    convoy: Run,
    command: str,
    images: list[str | Path],
    status: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    also = ["-o", str(tmp_path / "out.onnx")] if command == "quantize" else []
    module = import_module(f"service.cli.{command}")
    monkeypatch.setattr(module, "load", lambda *_: pytest.fail("a model is loaded"))
    found, _, error = convoy(command, "digits", *images, *also)
    assert found == status
    assert says in error
