"""The comparison with other servers, on made-up rows, and on a peer of the standard library's."""

import email
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from benchmarks.environments import DONE, environment, folder_of
from benchmarks.peers import __main__ as peers
from benchmarks.peers import processes
from benchmarks.peers.catalogue import (
    BENTOML,
    LITSERVE,
    PEERS,
    Peer,
    Setting,
    request_for,
    requirements,
)
from benchmarks.peers.comparison import (
    CONNECTIONS,
    DIGITS,
    NOOP,
    Case,
    Contender,
    Material,
    WrongAnswerError,
    material,
    measure,
    missing,
    top_of,
)
from benchmarks.peers.processes import StartError, members, running
from benchmarks.peers.report import best, show, standing, verdicts
from benchmarks.peers.servers.work import Digits, answer
from benchmarks.rows import ROOT, Row, read
from benchmarks.serving.http_client import (
    Address,
    BadAnswerError,
    ClosedError,
    Connection,
    closed_loop,
    free_port,
    post_request,
)
from benchmarks.serving.targets import CONVOY
from models import BUILT_IN_MODEL, load_classifier
from service.images.prepare import ImageLimits, prepare_image

COMMAND = ("python", "-m", "tests.support.benchmarks.stand_in_peer")


def row(server: str, rate: float, p99_ms: float, **changes: Any) -> Row:
    """A measurement under load."""
    return {
        "server": server,
        "setting": "as it comes",
        "work": NOOP,
        "connections": 8,
        "requests_a_second": rate,
        "p50_ms": p99_ms / 2,
        "p99_ms": p99_ms,
        **changes,
    }


# What is compared


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peers_versions_are_pinned_and_its_decoder_and_runtime_are_convoys(peer: Peer) -> None:
    wanted = (re.fullmatch(r"([a-z]+)(\[[a-z]+\])?==([\d.]+)", each) for each in requirements(peer))
    pinned = {found[1]: found[3] for found in wanted if found}
    assert len(pinned) == len(requirements(peer))
    assert {"numpy", "onnxruntime", "pillow"} < set(pinned)
    assert peer.package in pinned


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_has_a_program_and_settings_that_rows_can_tell_apart(peer: Peer) -> None:
    modules = [part.partition(":")[0] for part in peer.command if part.startswith("benchmarks.")]
    assert [(ROOT / (name.replace(".", "/") + ".py")).is_file() for name in modules] == [True]
    names = [setting.name for setting in peer.settings]
    assert len(set(names)) == len(names)
    assert any("2 " in name for name in names), "on two cores, two processes are tried"


def test_litserve_batches_eight_with_its_default_and_a_short_timeout() -> None:
    timeouts = {
        setting.choices.get("batch_timeout", "default")
        for setting in LITSERVE.settings
        if setting.choices.get("max_batch_size") == 8
    }
    assert timeouts == {"default", 0.001}


def test_no_peer_reports_home() -> None:
    told = {name: value for peer in PEERS for name, value in peer.environment.items()}
    assert (told["RAY_USAGE_STATS_ENABLED"], told["BENTOML_DO_NOT_TRACK"]) == ("0", "True")


def test_a_form_holds_the_picture_as_it_is() -> None:
    picture = b"\xff\xd8\r\n--\x00"
    request = request_for("form", "/predict", picture, "image/jpeg")
    head, _, body = request.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    form = email.message_from_bytes(head.partition(b"\r\n")[2] + b"\r\n\r\n" + body)
    _, part = form.walk()
    assert part.get_payload(decode=True) == picture
    assert part.get_content_type() == "image/jpeg"
    assert part.get_param("name", header="Content-Disposition") == "images"


# The work


def test_a_peer_sees_the_pixels_that_convoy_sees(tmp_path: Path) -> None:
    given = material(tmp_path)
    preprocessing = load_classifier(BUILT_IN_MODEL, overrides={}).preprocessing
    digits = Digits(str(given.model), given.side)
    assert len(given.cases[DIGITS]) == 10
    for case in given.cases[DIGITS]:
        pixels = digits.decode(case.image)
        expected = prepare_image(case.image, preprocessing, ImageLimits()).run()
        np.testing.assert_array_equal(pixels, expected)
        first = answer(digits.scores([pixels] * 3)[2])["predictions"][0]
        assert (first["index"], first["probability"]) == pytest.approx(case.best, abs=1e-5)


def test_a_crop_that_cannot_lie_in_the_middle_lies_where_convoys_does(tmp_path: Path) -> None:
    given = material(tmp_path)
    preprocessing = load_classifier(BUILT_IN_MODEL, overrides={}).preprocessing
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (480, 500), np.uint8)
    Image.fromarray(noise).save(file, "PNG")  # 33 × 32 before the crop
    np.testing.assert_array_equal(
        Digits(str(given.model), given.side).decode(file.getvalue()),
        prepare_image(file.getvalue(), preprocessing, ImageLimits()).run(),
    )


def test_the_five_likeliest_come_first() -> None:
    scores = np.random.default_rng(0).permutation(1000).astype(np.float32) / np.float32(100)
    found = answer(scores)["predictions"]
    order = np.argsort(-scores)[:5]
    weights = np.exp(scores.astype(np.float64))
    assert [each["index"] for each in found] == order.tolist()
    np.testing.assert_allclose(
        [each["probability"] for each in found], weights[order] / weights.sum(), atol=1e-6
    )


@pytest.mark.parametrize(
    "body",
    [
        '{"predictions": [{"index": 3, "probability": 0.5}]}',
        '[{"predictions": [{"index": 3, "probability": 0.5}]}]',
        '{"model": "m", "results": [{"predictions": [{"index": 3, "probability": 0.5}]}]}',
    ],
)
def test_an_answers_classes_are_found_in_each_servers_form(body: str) -> None:
    assert top_of(b"HTTP/1.1 200 OK\r\n\r\n" + body.encode()) == [(3, 0.5)]


def test_an_answer_without_classes_is_wrong() -> None:
    with pytest.raises(WrongAnswerError, match="no predictions in"):
        top_of(b'HTTP/1.1 200 OK\r\n\r\n{"detail": "no"}')


# What rows say


def test_a_peer_counts_with_the_best_of_each_number() -> None:
    rows = [
        row("LitServe", 100, 9),
        row("LitServe", 50, 3),
        row("LitServe", 999, 1, connections=1),
        row("LitServe", 999, 1, work=DIGITS),
        {**row("LitServe", 999, 1), "error": "503"},
        row(CONVOY, 700, 2),
    ]
    found = best(rows, "LitServe", NOOP, 8)
    assert found is not None
    assert (found.requests_a_second, found.p99_ms) == (100, 3)
    beside = standing(rows, "LitServe", NOOP, 8)
    assert beside is not None
    assert (beside.ratio, beside.p99_ms, beside.their_p99_ms) == (7, 2, 3)
    assert standing(rows, "Ray Serve", NOOP, 8) is None


@pytest.mark.parametrize(
    ("rate", "p99_ms", "verdict"),
    [(500, 2.99, "met"), (499, 1, "NOT MET"), (5000, 3, "NOT MET")],
)
def test_the_promise_is_five_times_the_rate_and_a_lower_p99(
    rate: float, p99_ms: float, verdict: str
) -> None:
    rows = [row("LitServe", 100, 3), row(CONVOY, rate, p99_ms)]
    (line,) = verdicts(rows)
    assert line.startswith(f"{verdict}: at least 5 times LitServe's requests/s")
    assert f"{rate / 100:.1f} times the requests/s" in line


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    rows = [row(CONVOY, 700, 2), *missing(BENTOML, "no network", [NOOP])]
    told = verdicts(rows)
    assert [line.partition(":")[0] for line in told] == ["not measured", "BentoML, noop"]
    assert told[1].endswith("not measured")


def test_the_table_says_who_is_not_installed_and_who_failed() -> None:
    rows = [
        row(CONVOY, 700, 2),
        row("LitServe", 100, 3, versions={"litserve": "1.2.3"}, protocol="multipart form"),
        {**row("Ray Serve", 0, 0), "error": "HTTP/1.1 503"},
        *missing(BENTOML, "no network", [NOOP]),
    ]
    shown = io.StringIO()
    show(rows, Console(file=shown, width=120))
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert "LitServe 1.2.3 as it comes (form) 100 1.50 3.00 7.0" in lines
    assert "Ray Serve as it comes failed" in lines
    assert "BentoML not installed" in lines
    assert "Ray Serve, as it comes, noop: HTTP/1.1 503" in lines
    assert "BentoML, noop: not installed: no network" in lines


# Processes


def run(folder: Path, picture: bytes = b"", start_s: float = 30, **choices: Any) -> Any:
    """The stand-in peer, running at the no-op."""
    port = free_port()
    settings = {"port": port, "work": NOOP, "model": "", "side": 1, "choices": choices}
    return running(
        [sys.executable, *COMMAND[1:]],
        {"CONVOY_PEER": json.dumps(settings)},
        folder,
        port,
        post_request("/predict", picture, "image/jpeg"),
        start_s,
    )


def ask(address: Address) -> bytes:
    connection = Connection(address)
    try:
        return connection.exchange(post_request("/predict", b"1", "image/jpeg"))
    finally:
        connection.close()


def test_a_server_and_its_stubborn_children_end_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_S", 0.5)
    with run(tmp_path / "peer", stubborn=str(tmp_path / "pid")) as address:
        assert len(top_of(ask(address))) == 5
        child = int((tmp_path / "pid").read_text())
        session = os.getsid(child)
        assert session != os.getsid(0)
        assert child in members(session)
    assert members(session) == []
    with pytest.raises(OSError, match="refused"):
        ask(address)


def test_a_server_that_dies_at_its_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"it ended with 1; .*not to my taste"):
        run(tmp_path, dies=True).__enter__()


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no answer in 0\.3 s"):
        run(tmp_path, start_s=0.3, never=True).__enter__()


def test_a_bad_answer_is_not_waited_for_in_vain(tmp_path: Path) -> None:
    with run(tmp_path, answers=2) as address:
        ask(address)
        with pytest.raises(BadAnswerError, match="503"):
            ask(address)


# All of it


GOOD, WRONG, UNSURE, TIRED = "good", "wrong", "unsure", "tired"
STAND_IN = Peer(
    "Stand-in",
    "stand-in",
    ("stand-in==1",),
    COMMAND,
    (
        Setting(GOOD),
        Setting(WRONG, {"wrong": True}),
        Setting(UNSURE, {"unsure": True}),
        Setting(TIRED, {"answers": 3}),
    ),
)
ABSENT = Peer("Absent", "absent", ("absent==1",), COMMAND, (Setting("any"),))


def test_all_servers_are_measured_and_each_failure_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PEERS", (STAND_IN, ABSENT))
    installed = folder_of(STAND_IN.package, requirements(STAND_IN), tmp_path)
    (installed / "bin").mkdir(parents=True)
    (installed / DONE).write_text('{"stand-in": "1"}')
    python = installed / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    folder_of(ABSENT.package, requirements(ABSENT), tmp_path).write_text(
        "a file, where an environment would be made"
    )
    out = tmp_path / "rows.json"
    arguments = [
        "--seconds",
        "0.2",
        "--rounds",
        "1",
        "--venvs",
        str(tmp_path),
        "--record",
        str(out),
    ]
    peers.main(arguments)

    rows = read(out)
    by = {(r["server"], r["setting"], r["work"], r["connections"]): r for r in rows}
    assert len(by) == len(rows) == 6 * 2 * 2  # contenders, works, numbers of connections
    for work in (NOOP, DIGITS):
        for connections in CONNECTIONS:
            for server, setting in ((CONVOY, "as it comes"), (STAND_IN.name, GOOD)):
                found = by[server, setting, work, connections]
                assert found["n"] >= connections
                assert 0 < found["p50_ms"] <= found["p99_ms"]
                assert found["commit"]
                assert found["load_average"] >= 0
                assert found["cores"]
            assert by[STAND_IN.name, GOOD, work, connections]["versions"] == {"stand-in": "1"}
            assert "is right" in by[STAND_IN.name, UNSURE, work, connections]["error"]
            assert "503" in by[STAND_IN.name, TIRED, work, connections]["error"]
            assert by[ABSENT.name, "", work, connections]["error"].startswith("not installed: ")
    assert "is right" in by[STAND_IN.name, WRONG, DIGITS, 8]["error"]


def test_every_other_round_runs_backwards_and_who_failed_is_not_asked_again(
    tmp_path: Path,
) -> None:
    started = []
    with run(tmp_path) as address:

        def contender(name: str, *, fails: bool = False) -> Contender:
            @contextmanager
            def opened(work: str, _: bytes) -> Iterator[Address]:
                started.append(name)
                if fails:
                    raise StartError("no")
                yield address

            return Contender(name, "", "/predict", "body", opened)

        contenders = [contender("a"), contender("b", fails=True), contender("c")]
        case = Case(b"picture", "image/jpeg", (None, 0.001))
        given = Material({NOOP: [case]}, tmp_path, 1)
        said: list[str] = []
        rows = measure(contenders, given, [NOOP], 3, 0.1, said.append)
    assert "".join(started) == "abccaac"
    assert [row["server"] for row in rows] == ["a", "a", "b", "b", "c", "c"]
    assert [row.get("error") for row in rows] == [None, None, "no", "no", None, None]
    for each in (rows[0], rows[-1]):
        assert each["n"] / each["requests_a_second"] > 0.29, "three rounds of 0.1 s"
        assert min(each["in_each_round"]) <= each["requests_a_second"] <= max(each["in_each_round"])
        assert len(each["in_each_round"]) == 3
    assert "round 1 of 3, noop: b, : no" in said


@pytest.mark.parametrize(("closes", "error"), [(2, None), (99, "the server closed the connection")])
def test_a_server_that_closes_connections_at_first_is_measured_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: int, error: str | None
) -> None:
    calls = 0

    def loop(*arguments: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if calls <= closes:
            raise ClosedError
        return closed_loop(*arguments)

    monkeypatch.setattr("benchmarks.peers.comparison.closed_loop", loop)
    with run(tmp_path) as address:

        @contextmanager
        def opened(_work: str, _request: bytes) -> Iterator[Address]:
            yield address

        case = Case(b"picture", "image/jpeg", (None, 0.001))
        contender = Contender("a", "", "/predict", "body", opened)
        rows = measure([contender], Material({NOOP: [case]}, tmp_path, 1), [NOOP], 1, 0.1, print)
    assert [row.get("error") for row in rows] == [error, error]


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(command: Any, **_: Any) -> Any:
        commands.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        listed = [{"name": "LitServe", "version": "0.2.19"}, {"name": "idna", "version": "3"}]

        class Done:
            returncode = 0
            stdout = json.dumps(listed) if "list" in command else ""

        return Done

    monkeypatch.setattr(subprocess, "run", run)
    made = environment("litserve", requirements(LITSERVE), tmp_path, lambda _: None)
    assert made.versions == {"litserve": "0.2.19", "idna": "3"}
    assert [word for command in commands for word in command if "==" in word] == [
        *requirements(LITSERVE)
    ]
    before = len(commands)
    assert environment("litserve", requirements(LITSERVE), tmp_path, lambda _: None) == made
    assert len(commands) == before


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--seconds", "0"], ["--peers", "xyz"]])
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        peers.parse_arguments(arguments)
