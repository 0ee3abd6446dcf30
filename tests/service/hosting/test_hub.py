"""Models by their names on a hub, downloaded from a server that imitates a hub and misbehaves."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import BUILT_IN_MODEL, ModelFileError
from service.hosting import download, hub
from service.hosting.finding import find_models
from service.hosting.hub import Address, parse_address, pull
from service.hosting.loading import OpenModel, open_models
from service.hosting.reading import load
from service.settings import HubAccess, Settings, SettingsError, hub_access
from tests.support import PATIENCE_S
from tests.support.servers.answering import answering, send_part
from tests.support.servers.fake_hub import COMMIT, REPOSITORY, Answer, FakeHub, fake_hub, send

MODEL = BUILT_IN_MODEL.read_bytes()
LABELS = [f"flower {number}" for number in range(10)]
CONFIG = json.dumps({"id2label": dict(enumerate(LABELS))}).encode()
FILES = {
    "README.md": b"# flowers",
    "config.json": CONFIG,
    "onnx/model.onnx": MODEL,
    "model.safetensors": bytes(100),
    "tokenizer.json": b"{}",
}
FLOWERS = Address("maker", "flowers")
MAIN, LISTED = "main", f"/api/models/{REPOSITORY}/revision/main"
STALLED_S = 2.5  # longer than a busy machine takes to begin an answer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "_STALLED_S", PATIENCE_S)
    monkeypatch.setattr(download, "_PAUSE_S", 0.0)


@pytest.fixture
def flowers() -> Iterator[FakeHub]:
    with fake_hub(FILES) as running:
        yield running


def unseen(*_: object) -> None:
    """Ignore the progress."""


def got(running: FakeHub, address: Address = FLOWERS, token: str = "") -> Path:
    return pull(address, HubAccess(running.url, token), unseen)


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def settings_of(address: str) -> Settings:
    return Settings(model=Path(address), threads=1, max_batch=1)


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("hf://maker/flowers", FLOWERS),
        ("hf://maker/flowers@v1.0", Address("maker", "flowers", "v1.0")),
        (f"hf://maker/flowers@{COMMIT}", Address("maker", "flowers", COMMIT)),
        ("hf://maker/flowers@refs%2Fpr%2F1", Address("maker", "flowers", "refs/pr/1")),
        ("hf://maker/flowers@refs/pr/1", Address("maker", "flowers", "refs/pr/1")),
        ("hf://maker/flowers/onnx/a.onnx", Address("maker", "flowers", file="onnx/a.onnx")),
        ("hf://maker/flowers@v1/a.onnx", Address("maker", "flowers", "v1", "a.onnx")),
        ("hf", None),
        ("maker/flowers", None),
        ("/hf:/maker/flowers", None),
        ("", None),
    ],
)
def test_an_address_survives_that_a_path_has_one_slash(
    written: str, address: Address | None
) -> None:
    assert parse_address(Path(written)) == address
    if address is not None:
        assert parse_address(Path(str(address))) == address


@pytest.mark.parametrize(
    "written",
    ["hf://", "hf://flowers", "hf://../flowers", "hf://maker/..", "hf://maker/a b", "hf://a/@main"],
)
def test_an_address_that_is_none_is_answered_with_the_form(written: str) -> None:
    with pytest.raises(ModelFileError, match="an address on a hub must be hf://ORG/NAME"):
        parse_address(Path(written))


@pytest.mark.parametrize("revision", ["", "a b", "x" * 81, "a%00b"])
def test_a_revision_that_git_cannot_have_is_refused(revision: str) -> None:
    with pytest.raises(ModelFileError, match="the revision is invalid"):
        parse_address(Path(f"hf://maker/flowers@{revision}"))


# --- what is fetched -----------------------------------------------------------------------------


def test_the_model_is_served_with_what_describes_it_and_offline_from_then_on(
    flowers: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", flowers.url)
    settings = settings_of("hf://maker/flowers")
    (opened,) = open_models(settings, None)
    assert isinstance(opened, OpenModel)
    assert (opened.info.name, opened.info.version) == ("flowers", "1")
    assert list(opened.info.labels) == LABELS
    assert flowers.paths == [LISTED, "config.json", "onnx/model.onnx"]

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    caplog.clear()
    assert list(load(settings, None).preprocessing.labels) == LABELS
    said = f"the hub cannot be reached (Connection refused); the downloaded commit {COMMIT}"
    assert said in caplog.text
    caplog.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_models(settings)[0].path.read_bytes() == MODEL
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert find_models(settings_of(f"hf://maker/flowers@{COMMIT}"))
    assert all(record.levelno < logging.WARNING for record in caplog.records)
    assert len(flowers.asked) == 3


def test_a_branch_is_asked_for_anew_and_only_what_is_missing_is_fetched(flowers: FakeHub) -> None:
    first = got(flowers)
    flowers.asked.clear()
    assert got(flowers) == first
    assert flowers.paths == [LISTED]
    flowers.commit = "d" * 40
    second = got(flowers)
    assert second != first
    assert second.read_bytes() == MODEL


def test_the_files_are_those_of_the_commit_by_the_revisions_name(flowers: FakeHub) -> None:
    got(flowers, Address("maker", "flowers", "refs/pr/1"))
    assert flowers.asked[0][0] == f"/api/models/{REPOSITORY}/revision/refs%2Fpr%2F1?blobs=true"
    assert flowers.asked[1][0] == f"/{REPOSITORY}/resolve/{COMMIT}/config.json"


def with_external_data(folder: Path, location: str) -> bytes:
    """Write a model and, to a separate file, its weights. Return the bytes of the model's file."""
    weights = numpy_helper.from_array(np.ones((3, 3, 1, 1), np.float32), "w")
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    scores = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [image], [scores], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(
        model,
        folder / "model.onnx",
        save_as_external_data=True,
        location=location,
        size_threshold=0,
    )
    return (folder / "model.onnx").read_bytes()


def test_weights_in_files_of_their_own_come_too(tmp_path: Path) -> None:
    model = with_external_data(tmp_path, "odd name.bin")
    weights = (tmp_path / "odd name.bin").read_bytes()
    preprocessor = {"do_resize": True, "size": {"height": 8, "width": 8}, "resample": 3}
    files = {
        "onnx/model.onnx": model,
        "onnx/odd name.bin": weights,
        "onnx/other.bin": bytes(10),
        "preprocessor_config.json": json.dumps(preprocessor).encode(),
    }
    with fake_hub(files) as running:
        path = got(running)
        assert running.paths[1:] == [
            "preprocessor_config.json",
            "onnx/model.onnx",
            "onnx/odd name.bin",
        ]
    assert (path.parent / "odd name.bin").read_bytes() == weights
    classifier = load(Settings(model=path, threads=1), ["size=8"])
    assert "preprocessor_config.json" in classifier.origin
    del files["onnx/odd name.bin"]
    with (
        fake_hub(files) as running,
        pytest.raises(ModelFileError, match=r"stores weights in 'odd name.bin', which the rep"),
    ):
        got(running, Address("maker", "flowers", "other"))


@pytest.mark.parametrize(
    ("names", "file", "chosen"),
    [
        (["model.onnx", "model_fp16.onnx"], "", "model.onnx"),
        (["onnx/model.onnx", "onnx/model_quantized.onnx"], "", "onnx/model.onnx"),
        (["onnx/model.onnx", "onnx/q.onnx"], "onnx/q.onnx", "onnx/q.onnx"),
        (["flowers.onnx"], "", "flowers.onnx"),
        (["repository/flowers/1/model.onnx"], "", "repository/flowers/1/model.onnx"),
    ],
)
def test_the_model_is_chosen_as_in_a_folder(names: list[str], file: str, chosen: str) -> None:
    with fake_hub(dict.fromkeys(names, MODEL)) as running:
        path = got(running, Address("maker", "flowers", file=file))
        assert running.paths[1:] == [chosen]
    assert str(path).endswith(f"/maker/flowers/{COMMIT}/{chosen}")


@pytest.mark.parametrize(
    ("names", "file", "says"),
    [
        (
            ["a.onnx", "onnx/model.onnx"],
            "",
            "a.onnx or onnx/model.onnx; name the file to serve, such as hf://maker/flowers/a.onnx",
        ),
        (["x/a.onnx", "y/b.onnx"], "", "may be x/a.onnx or y/b.onnx; name the file"),
        (
            [f"{n}.onnx" for n in range(12)],
            "",
            "may be 0.onnx or 1.onnx or 10.onnx or .* or 4 more; name the file",
        ),
        (["model.safetensors"], "", r"has no \*\.onnx.*; it has model.safetensors"),
        ([], "", "it has no files"),
        (["a.onnx"], "b.onnx", "hf://maker/flowers has no model b.onnx; it has a.onnx"),
        (["a.onnx"], "../a.onnx", "has no model ../a.onnx"),
    ],
)
def test_what_may_be_meant_is_named(names: list[str], file: str, says: str) -> None:
    with (
        fake_hub(dict.fromkeys(names, MODEL)) as running,
        pytest.raises(ModelFileError, match=says),
    ):
        got(running, Address("maker", "flowers", file=file))


def test_a_repositorys_model_toml_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    files = {"model.onnx": MODEL, "model.toml": b'labels = "/etc/passwd"'}
    with fake_hub(files) as running:
        path = got(running)
    assert names_in(path.parent) == ["model.onnx"]
    assert "model.toml is ignored" in caplog.text


# --- a hub that misbehaves -----------------------------------------------------------------------


def cut(handler: BaseHTTPRequestHandler, data: bytes, begin: int) -> None:
    """Answer with half of the rest and close the connection."""
    send_part(handler, data, begin, begin + (len(data) - begin) // 2)


def stall(handler: BaseHTTPRequestHandler, data: bytes, begin: int) -> None:
    """Answer with half of the rest, and then with nothing. Later answers have a long time limit."""
    cut(handler, data, begin)
    handler.wfile.flush()
    download._STALLED_S = PATIENCE_S
    handler.connection.recv(1)  # until the client closes


def drop(handler: BaseHTTPRequestHandler, data: bytes, begin: int) -> None:
    """Give no answer."""
    handler.close_connection = True


def status(code: int, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler, data: bytes, begin: int) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("content-length", "0")
        handler.end_headers()

    return answer


def no_ranges(handler: BaseHTTPRequestHandler, data: bytes, begin: int) -> None:
    send(handler, data, 0)


def said_to_have(change: int) -> Answer:
    """Answer with all of the data, but state another length."""

    def answer(handler: BaseHTTPRequestHandler, data: bytes, begin: int) -> None:
        handler.send_response(206 if begin else 200)
        handler.send_header("content-length", str(len(data) - begin + change))
        if begin:
            handler.send_header("content-range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        handler.end_headers()
        handler.wfile.write(data[begin:])

    return answer


def other_bytes(handler: BaseHTTPRequestHandler, data: bytes, begin: int) -> None:
    send(handler, bytes(len(data)), begin)


def more_bytes(handler: BaseHTTPRequestHandler, data: bytes, begin: int) -> None:
    send(handler, data + b"more", begin)


def text(content: str) -> Answer:
    return lambda handler, data, begin: send(handler, content.encode(), 0)


def changed(key: str, value: object) -> Answer:
    """Return an answer: the listing with another value for `key`, in the listing itself or in its
    first file."""

    def answer(handler: BaseHTTPRequestHandler, data: bytes, begin: int) -> None:
        listing = json.loads(data)
        place = listing if key in listing else listing["siblings"][0]
        place[key] = value
        send(handler, json.dumps(listing).encode(), 0)

    return answer


@pytest.mark.parametrize("name", ["model.onnx", "config.json", MAIN])
@pytest.mark.parametrize(
    "faults",
    [
        [cut],
        [cut, no_ranges],
        [cut, cut, drop],
        [stall],
        [drop, status(500), status(503)],
        [status(429, retry_after="0")],
        [said_to_have(100)],
    ],
    ids=[
        "cut",
        "no ranges",
        "twice",
        "stalled",
        "errors",
        "too many",
        "too short",
    ],
)
def test_what_fails_for_a_while_is_tried_again(
    flowers: FakeHub, name: str, faults: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    if stall in faults:
        monkeypatch.setattr(download, "_STALLED_S", STALLED_S)
    flowers.faults[name] += faults
    path = got(flowers)
    assert path.read_bytes() == MODEL
    assert names_in(path.parents[1]) == ["config.json", "onnx/model.onnx"]
    assert not flowers.faults[name]


def test_a_server_whose_file_ends_before_is_asked_for_all_of_it(flowers: FakeHub) -> None:
    flowers.faults["model.onnx"] += [cut, status(416)]
    assert got(flowers).read_bytes() == MODEL
    assert "range" not in flowers.asked[-1][1]


def test_what_is_here_is_not_asked_for_again(flowers: FakeHub) -> None:
    flowers.faults["model.onnx"] += [cut, *[drop] * 4]
    half = len(MODEL) // 2
    says = f"{half:,} bytes arrived; try again to resume; check the network"
    with pytest.raises(ModelFileError, match=says):
        got(flowers)
    flowers.asked.clear()
    assert got(flowers).read_bytes() == MODEL
    ((path, headers),) = [each for each in flowers.asked if "resolve" in each[0]]
    assert path.endswith("/onnx/model.onnx")
    assert headers["range"] == f"bytes={half}-"


WAYS_OUT = "Set https_proxy to a proxy or HF_ENDPOINT to a mirror of the hub .* name their folder"


@pytest.mark.parametrize(
    ("name", "faults", "says"),
    [
        (MAIN, [drop] * 5, f"revision/main.*; check the network. {WAYS_OUT}"),
        (MAIN, [status(500)] * 5, f"the server answers 500 .*{WAYS_OUT}"),
        (MAIN, [text("<html>sign in</html>")], f"not a list of files: .*{WAYS_OUT}"),
        (MAIN, [text("[]")], "not a list of files: Expected `object`"),
        (MAIN, [text("[" * 100_000)], "not a list of files: "),
        (MAIN, [changed("sha", "../..")], "not a list of files: "),
        (MAIN, [changed("sha", f"{COMMIT}\n")], "not a list of files: "),
        (MAIN, [changed("size", None)], "not a list of files: Expected `int`, got `null`"),
        (MAIN, [changed("size", -1)], "not a list of files: "),
        (MAIN, [changed("blobId", "../../x")], "not a list of files: "),
        (MAIN, [changed("lfs", {"sha256": "../x", "size": 1})], "not a list of files: "),
        (MAIN, [status(401)], "answers 401 Unauthorized; .*set HF_TOKEN to a token that may read"),
        (MAIN, [status(403)], "answers 403 Forbidden; .*accept the conditions on the repository's"),
        (MAIN, [status(404)], "answers 404 Not Found; check the names of the repository and of"),
        (MAIN, [status(429, retry_after="300")], "and asks to wait 300 s; try again later, or"),
        (MAIN, [status(429)] * 5, "answers 429 Too Many Requests; try again later"),
        ("model.onnx", [status(403)], "onnx/model.onnx: the server answers 403"),
        ("model.onnx", [other_bytes], "its checksum differs; the download was deleted"),
        ("config.json", [other_bytes], "its checksum differs; the download was deleted"),
        ("model.onnx", [more_bytes], f"has more than the expected {len(MODEL):,} bytes"),
        ("model.onnx", [said_to_have(-9)] * 5, f"{len(MODEL) - 9:,} bytes arrived"),
        ("model.onnx", [status(302, location="file:///etc/passwd")], "answers 302 .*file:"),
        (
            "model.onnx",
            [status(302, location="ftp://127.0.0.1:1/x")],
            "only redirects to https and http are followed",
        ),
    ],
)
def test_what_cannot_be_had_says_why_and_which_ways_are_left(
    flowers: FakeHub, name: str, faults: list[Answer], says: str, tmp_path: Path
) -> None:
    flowers.faults[name] += faults
    with pytest.raises(ModelFileError, match=says) as refused:
        got(flowers)
    assert "urlopen" not in str(refused.value)
    assert [file for file in names_in(tmp_path) if file.endswith("model.onnx")] == []


@pytest.mark.parametrize(
    "name",
    [
        "../x.txt",
        "onnx/../../x.txt",
        "/etc/x.txt",
        "onnx\\x.txt",
        "x\0.txt",
        "a\nb.txt",
        "a//b.txt",
        "./b.txt",
        "",
    ],
)
def test_a_repository_with_a_hostile_name_is_refused_and_nothing_is_written(
    name: str, tmp_path: Path
) -> None:
    with (
        fake_hub({**FILES, name: b"x"}) as running,
        pytest.raises(ModelFileError, match=r"is refused: the name of its file .* is not a plain"),
    ):
        got(running)
    assert running.paths == [LISTED]
    assert [file for file in names_in(tmp_path) if not file.endswith((".json", ".commit"))] == []


def test_a_repository_that_is_too_large_is_refused_before_it_is_fetched(flowers: FakeHub) -> None:
    listing = flowers.listing()
    listing["siblings"][2]["lfs"]["size"] = 2**40
    flowers.faults[MAIN].append(text(json.dumps(listing)))
    with pytest.raises(ModelFileError, match=r"has 1,099,511,\d+,\d+ bytes; choose a model"):
        got(flowers)
    assert flowers.paths == [LISTED]


def test_a_list_of_files_is_bounded(flowers: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_LARGEST_LISTING", 100)
    with pytest.raises(ModelFileError, match="sent more than the 100 bytes allowed"):
        got(flowers)


def test_another_commit_than_was_asked_for_is_refused(flowers: FakeHub) -> None:
    with pytest.raises(ModelFileError, match="listed the files of another commit, c0ffee"):
        got(flowers, Address("maker", "flowers", "d" * 40))


# --- tokens --------------------------------------------------------------------------------------


def test_a_token_is_sent_to_the_hub_and_to_no_other_server(
    flowers: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    def elsewhere(handler: BaseHTTPRequestHandler) -> None:
        seen.append({name.lower(): value for name, value in handler.headers.items()})
        if handler.path == "/back":
            status(302, location=f"{flowers.url}/{REPOSITORY}/resolve/{COMMIT}/config.json")(
                handler, b"", 0
            )
        else:
            send(handler, MODEL, int(handler.headers.get("range", "bytes=0-")[6:-1]))

    flowers.token = "hf_secret"
    with answering(elsewhere) as storage:
        away, back = status(302, location=f"{storage}/x"), status(302, location=f"{storage}/back")
        flowers.faults["model.onnx"] += [cut, away]
        # To the same server, as for a repository that was renamed: the token goes with it.
        flowers.faults[MAIN].append(status(307, location=f"{LISTED}?blobs=true"))
        monkeypatch.setenv("HF_ENDPOINT", f"{flowers.url}/")
        monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
        path = pull(FLOWERS, hub_access(), unseen)
        assert path.read_bytes() == MODEL
        assert {headers["authorization"] for _, headers in flowers.asked} == {"Bearer hf_secret"}
        assert [headers.get("range") for headers in seen] == [f"bytes={len(MODEL) // 2}-"]
        flowers.commit = "d" * 40
        flowers.faults["config.json"] += [back]
        with pytest.raises(ModelFileError, match="401"):  # a token that was dropped stays dropped
            pull(FLOWERS, hub_access(), unseen)
    assert len(seen) == 2
    assert [headers for headers in seen if "authorization" in headers] == []


def test_a_wrong_token_is_named_but_not_shown(flowers: FakeHub) -> None:
    flowers.token = "hf_right"
    with pytest.raises(ModelFileError, match="HF_TOKEN is not a token of") as refused:
        got(flowers, token="hf_wrong")
    assert "hf_wrong" not in str(refused.value)
    assert "hf_wrong" not in repr(HubAccess("http://x", "hf_wrong"))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("HF_ENDPOINT", "huggingface.co", "HF_ENDPOINT: huggingface.co is not allowed"),
        ("HF_ENDPOINT", "file:///etc", "it must be an address"),
        ("HF_TOKEN", "hf_a\r\nX: y", "HF_TOKEN has characters that no token has"),
    ],
)
def test_a_variable_that_is_wrong_is_named(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as refused:
        hub_access({name: value})
    assert "hf_a" not in str(refused.value)


def test_offline_what_is_not_here_is_refused_without_a_request(flowers: FakeHub) -> None:
    with pytest.raises(ModelFileError, match=r"was not downloaded, and HF_HUB_OFFLINE is set; .* "):
        pull(FLOWERS, HubAccess(flowers.url, offline=True), unseen)
    assert not flowers.asked


def test_a_damaged_file_is_fetched_again(flowers: FakeHub) -> None:
    path = got(flowers)
    path.write_bytes(bytes(len(MODEL)))
    assert got(flowers).read_bytes() == MODEL


def test_two_at_once_fetch_a_file_once(flowers: FakeHub) -> None:
    found: list[Path] = []
    run: Callable[[], None] = lambda: found.append(got(flowers))  # noqa: E731
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path.read_bytes() for path in found} == {MODEL}
    assert len(found) == 4
    assert flowers.paths.count("onnx/model.onnx") == 1
