"""Models by name, downloaded from a server that stalls, truncates files, sends wrong files, and
redirects."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any

import pytest

from models import BUILT_IN_MODEL, PRESETS, ModelFileError
from service.hosting import download
from service.hosting.catalogue import (
    Entry,
    find_entry,
    near_names,
    pull,
    pulled,
    read_catalogue,
)
from service.hosting.download import NotDownloadedError
from service.hosting.loading import OpenModel, open_models
from service.settings import Settings
from tests.support import PATIENCE_S
from tests.support.servers.answering import answering, send_part

FILE = BUILT_IN_MODEL.read_bytes()
HALF = len(FILE) // 2
STALLED_S = 2.5  # longer than a busy machine takes to begin an answer

Answer = Callable[[BaseHTTPRequestHandler, int], None]  # the handler, and where the range begins


def send(handler: BaseHTTPRequestHandler, begin: int, data: bytes) -> None:
    """Send `data`, but declare that it is everything from `begin` to the end of the file."""
    send_part(handler, FILE[:begin] + data + FILE[begin + len(data) :], begin, begin + len(data))


def whole(handler: BaseHTTPRequestHandler, begin: int) -> None:
    send(handler, begin, FILE[begin:])


def half(handler: BaseHTTPRequestHandler, begin: int) -> None:
    send(handler, begin, FILE[begin:][:HALF])


def no_ranges(handler: BaseHTTPRequestHandler, begin: int) -> None:
    whole(handler, 0)


def stall(handler: BaseHTTPRequestHandler, begin: int) -> None:
    """Answer with half of the rest, and then with nothing. The download gives up soon. Later
    answers have a long time limit."""
    half(handler, begin)
    handler.wfile.flush()
    download._STALLED_S = PATIENCE_S
    handler.connection.recv(1)  # until the client closes


def lie(handler: BaseHTTPRequestHandler, begin: int) -> None:
    send(handler, begin, bytes(len(FILE) - begin))


def too_long(handler: BaseHTTPRequestHandler, begin: int) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(FILE + b"more")


def redirect(handler: BaseHTTPRequestHandler, begin: int) -> None:
    handler.send_response(302)
    handler.send_header("location", "/elsewhere")
    handler.end_headers()


def redirect_to(url: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler, begin: int) -> None:
        handler.send_response(302)
        handler.send_header("location", url)
        handler.end_headers()

    return answer


def reset(handler: BaseHTTPRequestHandler, begin: int) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True


def status(code: int) -> Answer:
    return lambda handler, begin: handler.send_error(code)


@contextmanager
def server(*answers: Answer) -> Iterator[tuple[Entry, list[int]]]:
    """Yield an entry for a file on a server that gives these answers in order. Also yield a list
    with the begin of each requested range."""
    waiting, asked = iter(answers), list[int]()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(int(handler.headers.get("range", "bytes=0-")[6:-1]))
        next(waiting)(handler, asked[-1])

    with answering(answer) as address:
        sum_ = hashlib.sha256(FILE).hexdigest()
        url = f"{address}/model.onnx"
        yield Entry(url=url, sha256=sum_, bytes=len(FILE), licence="MIT", preset="digits"), asked


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "_STALLED_S", PATIENCE_S)
    monkeypatch.setattr(download, "_PAUSE_S", 0.0)


def unseen(*_: object) -> None:
    """Ignore the progress."""


@pytest.mark.parametrize(
    ("answers", "begins"),
    [
        ([whole], [0]),
        ([redirect, whole], [0, 0]),
        ([half, whole], [0, HALF]),
        ([stall, whole], [0, HALF]),
        ([half, no_ranges], [0, HALF]),
        ([status(503), whole], [0, 0]),
    ],
    ids=["whole", "redirected", "truncated", "stalled", "no ranges", "unavailable"],
)
def test_a_file_is_whole_in_the_end_and_its_progress_is_told(
    tmp_path: Path, answers: list[Answer], begins: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if stall in answers:
        monkeypatch.setattr(download, "_STALLED_S", STALLED_S)
    seen: list[tuple[str, int, int]] = []

    def see(*progress: Any) -> None:
        seen.append(progress)

    with server(*answers) as (entry, asked):
        path = pull("one", entry, see, tmp_path)
        assert pull("one", entry, see, tmp_path) == path  # without another request
    assert asked == begins
    assert path.read_bytes() == FILE
    assert seen[-1] == ("one", len(FILE), len(FILE))
    assert sorted(each.name for each in path.parent.iterdir()) == ["model.onnx", "model.toml"]


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([lie], "its checksum differs; the download was deleted"),
        ([too_long], "has more than"),
        ([status(404)], "the server answers 404 Not Found; nothing was downloaded; check the"),
        ([status(503)] * 5, "the server answers 503 .*; nothing was downloaded; check the network"),
        ([reset] * 5, "nothing was downloaded"),
        ([half, *[status(503)] * 4], f"{HALF:,} of {len(FILE):,} bytes were downloaded; try again"),
        ([redirect_to("ftp://127.0.0.1:1/x")], "redirects to ftp://.*, but only redirects to"),
        ([redirect_to("file:///etc/passwd")], "file:"),
    ],
)
def test_what_is_not_the_file_never_takes_its_place(
    tmp_path: Path, answers: list[Answer], says: str
) -> None:
    with (
        server(*answers) as (entry, _),
        pytest.raises(ModelFileError, match=says),
    ):
        pull("one", entry, unseen, tmp_path)
    assert pulled("one", tmp_path) is None


@pytest.mark.parametrize("proxy", [False, True])
def test_a_redirect_to_ftp_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, proxy: bool
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as listening:
        listening.timeout = 0.2
        asked = list[object]()
        monkeypatch.setattr(listening, "process_request", lambda *request: asked.append(request))
        if proxy:
            monkeypatch.setenv("ftp_proxy", f"http://127.0.0.1:{listening.server_port}")
            monkeypatch.setenv("no_proxy", "")
        elsewhere = redirect_to(f"ftp://127.0.0.1:{listening.server_port}/model.onnx")
        with (
            server(elsewhere) as (entry, _),
            pytest.raises(ModelFileError, match="only redirects to https"),
        ):
            pull("one", entry, unseen, tmp_path)
        listening.handle_request()
    assert not asked


def test_an_error_of_the_network_is_told_in_its_own_words(tmp_path: Path) -> None:
    with server() as (entry, _):
        pass  # nobody listens there now
    with pytest.raises(ModelFileError) as refused:
        pull("one", entry, unseen, tmp_path)
    message = str(refused.value)
    assert "Connection refused; nothing was downloaded" in message
    assert "urlopen" not in message
    assert "again" not in message
    assert not list((tmp_path / "one").iterdir())


def test_a_host_that_never_answers_a_connection_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_STALLED_S", 0.2)
    pauses: list[float] = []
    monkeypatch.setattr("service.hosting.download.time.sleep", pauses.append)
    with socket() as silent, server() as (entry, _):
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        with socket() as one, socket() as other:  # as many as wait: the next gets no answer
            for waiting in (one, other):
                waiting.setblocking(False)
                waiting.connect_ex(silent.getsockname())
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/model.onnx"
            with pytest.raises(NotDownloadedError, match="timed out; nothing was downloaded"):
                pull("one", entry.model_copy(update={"url": url}), unseen, tmp_path)
    assert pauses == []


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "..", "a/b", "stats", ""])
def test_a_name_is_that_of_one_folder_and_nothing_is_written_elsewhere(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "a" / "b" / "c"
    with server() as (entry, asked), pytest.raises(ModelFileError, match="invalid model name"):
        pull(name, entry, unseen, folder)
    assert not asked
    assert not list(tmp_path.iterdir())
    assert pulled(name, folder) is None
    fields = entry.model_dump(exclude={"top1", "labels"})
    more = tmp_path / "more.toml"
    more.write_text(f"[{name!r}]\n" + "".join(f"{k} = {v!r}\n" for k, v in fields.items()))
    with pytest.raises(ModelFileError, match=r"more\.toml: .*: invalid model name"):
        read_catalogue(more)


def test_an_interrupted_pull_is_resumed_by_the_next(tmp_path: Path) -> None:
    def interrupt(_: str, done: int, total: int) -> None:
        if done >= HALF:
            raise KeyboardInterrupt

    with server(whole, whole) as (entry, asked):
        with pytest.raises(KeyboardInterrupt):
            pull("one", entry, interrupt, tmp_path)
        path = pull("one", entry, unseen, tmp_path)
    assert asked[1] >= HALF
    assert path.read_bytes() == FILE


def test_a_proxy_is_asked_where_the_environment_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(whole) as (entry, _):
        monkeypatch.setenv("http_proxy", entry.url.rpartition("/")[0])
        elsewhere = entry.model_copy(update={"url": "http://models.invalid/model.onnx"})
        assert pull("one", elsewhere, unseen, tmp_path).read_bytes() == FILE


def test_a_model_is_served_by_its_name_and_pulled_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    more = tmp_path / "more.toml"
    with server(whole) as (entry, _):
        labels = [f"label {number}" for number in range(10)]
        fields = entry.model_dump(exclude={"top1"}) | {"labels": labels}
        more.write_text(
            "[mine]\n" + "".join(f"{key} = {value!r}\n" for key, value in fields.items())
        )
        settings = Settings(model=Path("mine"), catalogue=more, threads=1, max_batch=1)
        first = list(open_models(settings, None))
    for opened in (*first, *open_models(settings, None)):  # the second time without the server
        assert isinstance(opened, OpenModel)
        assert opened.info.name == "mine"
        assert list(opened.info.labels) == labels


ALL = f"the models are {', '.join(read_catalogue())}; `convoy models` describes them"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("resnet", "did you mean resnet18 or resnet18-v2 or resnet50?"),
        ("reznet50", "did you mean resnet50?"),
        ("reznet", ALL),
        ("mobilenet", "did you mean mobilenetv2 or mobilenetv2-mxnet?"),
        ("vgg", "did you mean vgg19?"),
        ("vgg91", "did you mean vgg19?"),
        ("RESNET18", "did you mean resnet18?"),
        ("densenet", ALL),
        ("efficientnet", ALL),
        ("r", ALL),
    ],
)
def test_names_are_near_where_they_begin_almost_so(asked: str, says: str) -> None:
    assert near_names(asked, read_catalogue()) == says


def test_the_shipped_catalogue_is_valid_and_a_slip_gets_near_names() -> None:
    entries = read_catalogue()
    assert len({entry.sha256 for entry in entries.values()}) == len(entries) >= 12
    assert {entry.preset for entry in entries.values()} <= set(PRESETS)
    with pytest.raises(ModelFileError, match=r"did you mean squeezenet1\.1"):
        find_entry("squeezenet", entries)


def test_a_catalogue_that_is_invalid_is_named(tmp_path: Path) -> None:
    path = tmp_path / "more.toml"
    path.write_text("[mine]\nurl = 'file:///etc/passwd'\n")
    with pytest.raises(ModelFileError, match=r"more\.toml: url"):
        read_catalogue(path)
