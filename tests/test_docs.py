"""The documentation: its commands print the output on the page, and its links lead to files."""

import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import catalogue, mlperf
from benchmarks.peers.comparison import CONNECTIONS
from benchmarks.peers.report import readme_table
from benchmarks.peers.works import WORKS
from benchmarks.rows import fill, read
from models.keys import KEYS
from models.readers import FILES
from service.settings import Settings
from tests.support import ROOT
from tests.support.benchmarks.stand_in import row
from tests.support.command_line import Run, convoy
from tests.support.kernels import resources
from tests.support.servers.several_models import convoy_serve

__all__ = ["convoy"]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text(encoding="utf-8")
INDEX = (ROOT / "docs/README.md").read_text(encoding="utf-8")
ALL_PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")}
)
SERVER = "127.0.0.1:8000"
CONVOY = f"{shlex.quote(sys.executable)} -c 'from service.cli import main; main()'"


def shown(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command after `$ `, and the output below it."""
    for block in re.findall(r"(?m)^    \$ .*\n(?:    .*\n)*", text):
        command, *output = block.splitlines()
        yield command.removeprefix("    $ "), "\n".join(line[4:] for line in output)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with convoy_serve("digits", "--device", "cpu") as port:
        yield f"127.0.0.1:{port}"


def without_times(text: str) -> Any:
    try:
        answer = json.loads(text)
    except ValueError:
        return [line.split() for line in text.strip().splitlines()]
    return {key: value for key, value in answer.items() if key != "timing_ms"}


def run(command: str) -> str:
    result = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(("command", "output"), list(shown(README)))
def test_a_command_of_the_readme_prints_what_is_shown(
    address: str, command: str, output: str
) -> None:
    command = re.sub("^convoy ", f"{CONVOY} ", command.replace(SERVER, address))
    assert without_times(run(command)) == without_times(output)


@pytest.mark.parametrize(
    ("client", "answer"), [("With Python", "'label': '7'"), ("With a client of Triton", ":7:7'")]
)
def test_the_readmes_clients_print_the_label(address: str, client: str, answer: str) -> None:
    (code,) = re.findall(rf"{client}.*:\n\n((?:    .*\n)+)", README)
    code = re.sub("(?m)^    ", "", code).replace(SERVER, address)
    assert answer in run(f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}")


def test_measured_numbers_are_those_recorded_last() -> None:
    for file, made in peers.PAGES.items():
        page = file.read_text(encoding="utf-8")
        assert fill(page, peers.BEGIN, peers.END, made(read(peers.RECORD))) == page
    page = mlperf.DOCS.read_text(encoding="utf-8")
    assert fill(page, mlperf.BEGIN, mlperf.END, mlperf.table(read(mlperf.RECORD))) == page


def test_the_clients_of_the_documentation_are_answered(address: str) -> None:
    text = (ROOT / "docs/http-api.md").read_text()
    examples = re.findall(
        r"\n((?:    .*\n|\n)*    import (?:httpx|numpy).*\n(?:    .*\n|\n)*)", text
    )
    assert len(examples) == 2
    image = ROOT / "models/digits/samples/7_faint_on_grey.jpg"
    for example in examples:
        code = re.sub("(?m)^    ", "", example).replace(SERVER, address)
        code = code.replace('"cat.jpg"', repr(str(image)))
        assert "7" in run(f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}")


def test_documentation_openapi_and_errors_name_the_same_fields_and_priorities(address: str) -> None:
    page = (ROOT / "docs/http-api.md").read_text(encoding="utf-8")
    openapi = httpx.get(f"http://{address}/openapi.json").json()
    operation = openapi["paths"]["/v1/classify"]["post"]
    form = operation["requestBody"]["content"]["multipart/form-data"]["schema"]
    *most, last = form["properties"]
    assert f"the field {', '.join(f'`{name}`' for name in most)} or `{last}`" in page
    url = f"http://{address}/v1/classify"
    errors = [
        httpx.post(url, files={"picture": b"x"}).json()["error"],
        httpx.post(url, files={"picture": (None, "x")}).json()["error"],
        httpx.post(url, content=b"x", headers={"content-type": "text/plain"}).json()["error"],
    ]
    named = f"the field {', '.join(map(repr, most))} or {last!r}"
    assert [error for error in errors if named not in error] == []

    (priority,) = (each for each in operation["parameters"] if each["name"] == "X-Priority")
    assert f"| `X-Priority` | {priority['description']};" in page
    error = httpx.post(url, headers={"x-priority": "-1"}, content=b"x").json()["error"]
    assert priority["description"] in error
    parameters = openapi["components"]["schemas"]["RequestParameters"]["properties"]
    assert parameters["priority"]["description"] == priority["description"]


def test_as_many_kernels_are_compiled_as_the_page_says(
    convoy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run all of `convoy compile` except NVRTC, which takes half a minute for these kernels."""
    monkeypatch.setattr(
        "models.tuning.precompile.compile_all", lambda wanted, archs, *_: [*product(wanted, archs)]
    )
    ((command, output),) = shown((ROOT / "docs/kernels.md").read_text(encoding="utf-8"))
    _, *words = shlex.split(command)
    status, out, _ = convoy(*words)
    assert (status, out.strip()) == (0, output)


def test_compilers_differ_as_the_page_for_a_day_with_a_gpu_says() -> None:
    page = " ".join((ROOT / "docs/gpu-day.md").read_text(encoding="utf-8").split())
    older, newer = (
        {row: cells["90a"] for row, cells in resources.read(made_by).items()}
        for made_by in ("NVRTC 13.0", "NVRTC 13.4")
    )
    assert "a fifth to a quarter of all kernels use other numbers of registers or bytes" in page
    assert 1 / 5 <= sum(older[row] != newer[row] for row in older) / len(older) <= 1 / 4
    spill = [row for row, cell in older.items() if "stores" in cell]
    assert f"{len(spill)} kernels spill registers, all of them Winograd kernels" in page
    assert "With 13.4, no kernel spills registers" in page
    assert all(row.startswith("winograd.cu ") for row in spill)
    assert not [row for row, cell in newer.items() if "stores" in cell]


RECORDS = [page for page in (ROOT / "docs/decisions").glob("*.md") if page.stem != "README"]


@pytest.mark.parametrize("page", RECORDS, ids=lambda page: page.stem)
def test_a_decision_record_is_short_and_says_when_it_may_be_changed(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= 300
    parts = re.findall(r"(?m)^\*\*([A-Z][a-z ]+)\b.*?\*\*", text)
    assert [part for part in parts if part in PARTS_OF_A_RECORD] == PARTS_OF_A_RECORD
    index = (page.parent / "README.md").read_text(encoding="utf-8")
    title = text.partition("\n")[0].removeprefix("# ")
    assert f"- [{title}]({page.name})\n" in index


PARTS_OF_A_RECORD = ["Context", "Decision", "Measurement", "When it may be changed"]


def test_quantize_has_one_spelling() -> None:
    """The spelling is that of ONNX, of its libraries and of `convoy quantize`."""
    command = ["git", "grep", "-iI", "quanti" + "s"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert found == ""


def test_the_order_of_reading_is_one_of_25_files_for_either_reader() -> None:
    page = (ROOT / "docs/reading.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (\d+) \| (\d+) \| `([\w/.]+)` \| ([^|]+) \|$", page)
    kernels_first, servers_first, files, sentences = zip(*rows, strict=True)
    everyone = [str(number + 1) for number in range(25)]
    assert list(kernels_first) == sorted(servers_first, key=int) == everyone
    assert len(set(files)) == len(files)
    lines = sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files)
    assert f"25 files, {round(lines, -2):,} lines" in page
    assert all(re.fullmatch(r"[^.]+(\.\S[^.]*)*\.", sentence) for sentence in sentences)


def test_the_readme_is_one_page() -> None:
    assert len(README.splitlines()) <= 150

    # With the longest table: another server is better at every work, and all were measured.
    worst = [
        row(peer.name, rate, work=work, connections=connections)
        for work, connections in product(WORKS, CONNECTIONS)
        for rate, peer in zip(count(100, 100), (catalogue.CONVOY, *catalogue.PEERS))
    ]
    longest = fill(README, peers.BEGIN, peers.END, readme_table(worst))
    assert len(longest.splitlines()) <= 150


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_path_leads_to_a_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert [link for link in links if ":" not in link and not (page.parent / link).exists()] == []

    # Of paths, those below a folder that is there; `path` at a commit names what was there then.
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.[a-z]{1,5})`(?!\s+at\s+[0-9a-f]{7})", text)
    bases = (ROOT, page.parent, ROOT / "service")
    ours = [path for path in paths if any((base / path.split("/")[0]).is_dir() for base in bases)]
    assert [path for path in ours if not any((base / path).exists() for base in bases)] == []


def test_the_settings_page_is_what_make_docs_writes() -> None:
    page = runpy.run_path(str(ROOT / "docs/settings.py"))["page"]()
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == page
    assert page.count("| `CONVOY_") == len(Settings.model_fields)


def test_every_metric_of_a_server_is_documented(address: str) -> None:
    text = httpx.get(f"http://{address}/metrics").text
    names = re.findall(r"(?m)^# TYPE (convoy_\w+)", text)
    assert len(names) > 15
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}" not in page] == []


def test_every_key_of_a_description_and_every_file_that_is_read_is_documented() -> None:
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert [name for name in (*KEYS, *FILES) if f"`{name}`" not in text] == []


COMMANDS = sorted(
    {
        line.strip().removeprefix("$ ").partition("  #")[0]
        for page in (*PAGES, *sorted((ROOT / "deploy").rglob("*.md")))
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.match(r"    (\$ )?convoy \w", line)
    }
)


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """Return an empty dictionary for the help of each command, which takes long to print."""
    return {}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_flag_that_is_shown_exists(
    command: str, convoy: Run, helps: dict[str, str]
) -> None:
    _, name, *rest = shlex.split(command)
    if name not in helps:
        status, out, _ = convoy(name, "--help")
        assert status == 0
        helps[name] = out
    flags = [word.partition("=")[0] for word in rest if word.startswith("--")]
    assert [flag for flag in flags if not re.search(rf"{flag}[ ,/]", helps[name])] == []


NAMES = r"(?:onnx|jpe?g|png|gif|webp|mp4|zip|txt|csv|toml|jsonl?|html|py|lua|sh|ya?ml|conf)"
RUN = r"(?:convoy|curl|python3?|make|docker|kubectl|hey|wrk|ab|locust|nginx|caddy|pipx?|cp)"


def files_of(command: str) -> list[str]:
    """Return the files and folders in a command, in order."""
    without_urls = re.sub(r"\w+://\S+|\$[A-Z]+/", "", command)
    name = rf"(?:[\w.*-]+/)*[\w.*-]+\.{NAMES}|(?:[\w.-]+/)+"
    return re.findall(rf"(?<![\w./*-])({name})(?![\w/.*])", without_urls)


def commands_of(page: str) -> Iterator[str]:
    """Yield the commands of a page, each with its continuation lines."""
    joined = re.sub(r"\\\n\s+", " ", page)
    for line in re.findall(rf"(?m)^    (?:\$ )?({RUN} .*)$", joined):
        yield re.split(r"\s#\s", line)[0]


WRITTEN = r"(?:-o|--output|--json|--plot|--report|--record|>) "


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_an_example_needs_no_file_that_a_clone_lacks(page: Path) -> None:
    """The exceptions are the reader's own files, which docs/README.md lists."""
    text = page.read_text(encoding="utf-8")
    own = re.findall(r"`([^`]+)`", re.findall(r"(?s)The examples name (.*?)\n\n", INDEX)[0])
    missing = []
    for command in commands_of(text):
        for name in files_of(command):
            here = any(True for _ in ROOT.glob(name)) or (page.parent / name).exists()
            made = re.search(rf"{WRITTEN}\S*?{re.escape(name)}|\"{re.escape(name)}\"", text)
            if not (here or made or name in own):
                missing.append(f"{name} in {command}")
    assert missing == []
