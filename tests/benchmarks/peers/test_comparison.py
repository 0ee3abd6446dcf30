"""The comparison with other servers, using a peer from the standard library."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.environments import (
    DONE,
    NotInstalledError,
    environment,
    folder_of,
    needed_by,
    size_mb,
)
from benchmarks.peers import __main__ as peers
from benchmarks.peers import comparison
from benchmarks.peers.catalogue import CONVOY, LITSERVE, Peer, Setting, requirements
from benchmarks.peers.comparison import (
    CONNECTIONS,
    Contender,
    Effort,
    WrongAnswerError,
    measure,
    right,
    top_of,
)
from benchmarks.peers.works import DIGITS, NOOP, Case
from benchmarks.rows import Row, read
from benchmarks.serving.http_client import Address, BadAnswerError, ClosedError, closed_loop
from tests.support.benchmarks.stand_in import COMMAND, HERE, NOTHING, ask, row, run


@pytest.mark.parametrize(
    "body",
    [
        '{"predictions": [{"index": 3, "probability": 0.5}]}',
        '[{"predictions": [{"index": 3, "probability": 0.5}]}]',
        '{"model": "m", "results": [{"predictions": [{"index": 3, "probability": 0.5}]}]}',
        '{"outputs": [{"name": "scores", "datatype": "BYTES", "data": ["0.500000:3"]}]}',
    ],
)
def test_an_answers_classes_are_found_in_each_servers_form(body: str) -> None:
    assert top_of(b"HTTP/1.1 200 OK\r\n\r\n" + body.encode()) == [(3, 0.5)]


def test_the_no_ops_classes_are_equally_likely_so_any_of_them_is_right() -> None:
    found = [{"index": index, "probability": 0.001} for index in (9, 4, 6, 2, 7)]
    answer = b"\r\n\r\n" + json.dumps({"predictions": found}).encode()
    (case,) = NOTHING.cases
    right(answer, case, 1e-6)
    with pytest.raises(WrongAnswerError, match="must begin with"):
        right(answer, Case(case.image, case.media_type, (4, 0.001)), 1e-6)


def test_an_answer_without_classes_is_wrong() -> None:
    with pytest.raises(WrongAnswerError, match="must have predictions"):
        top_of(b'HTTP/1.1 200 OK\r\n\r\n{"detail": "no"}')


def test_a_bad_answer_is_not_waited_for_in_vain(tmp_path: Path) -> None:
    with run(tmp_path, answers=2) as server:
        ask(server)
        with pytest.raises(BadAnswerError, match="503"):
            ask(server)


# All of it


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no resumed server, because these servers have no work left."""
    monkeypatch.setattr(comparison, "_SETTLE_S", 0.0)


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


def test_a_run_that_is_interrupted_keeps_the_works_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*_: object) -> Iterator[list[Row]]:
        yield [row(CONVOY.name, 700)]
        raise KeyboardInterrupt

    monkeypatch.setattr(peers, "compare", compare)
    out = tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        peers.main(["--record", str(out)])
    assert read(out) == [row(CONVOY.name, 700)]


@pytest.mark.parametrize(
    "works", [[DIGITS], pytest.param([NOOP, DIGITS], marks=pytest.mark.slow)], ids=len
)
def test_all_servers_are_measured_and_each_failure_is_its_own(
    works: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def installed(name: str, wanted: Sequence[str], *_: object) -> Any:
        if name == ABSENT.package:
            raise NotInstalledError("no network")
        return HERE

    monkeypatch.setattr(peers, "PEERS", (STAND_IN, ABSENT))
    monkeypatch.setattr(peers, "environment", installed)
    monkeypatch.setattr(peers, "requirements", lambda peer: peer.requirements)
    # Another test looks at the files: here they are tens of thousands.
    monkeypatch.setattr(peers, "size_mb", len)
    out = tmp_path / "rows.json"
    effort = ["--seconds", "0.05", "--rounds", "2", "--works", *works]
    peers.main([*effort, "--record", str(out)])

    rows = read(out)
    by = {(r["server"], r["work"], r["connections"]): r for r in rows}
    assert len(by) == len(rows) == 3 * len(works) * len(CONNECTIONS)
    # The no-op's classes are all equally likely: in whatever order they come, the answer is right.
    settings_right = {NOOP: {GOOD, WRONG}, DIGITS: {GOOD}}
    for work in works:
        rightly = settings_right[work]
        for connections in CONNECTIONS:
            for server, settings in ((CONVOY.name, {"as it comes"}), (STAND_IN.name, rightly)):
                found = by[server, work, connections]
                assert found["setting"] in settings
                assert found["n"] >= connections
                assert found["commit"]
                assert (found["telemetry"], found["cores"] > 0) == ("off", True)
                assert found["start_s"] > 0
                assert found["idle_mb"] > 5
                assert found["installed_mb"] > 5
                for name in ("requests_a_second", "p50_ms", "p99_ms", "cpu_ms", "threads"):
                    assert len(found[name]) == 2, "a number for each round"
                    assert min(found[name]) > 0
            theirs = by[STAND_IN.name, work, connections]
            assert set(theirs["tried"]) == rightly
            assert set(theirs["failed"]) == {GOOD, WRONG, UNSURE, TIRED} - rightly
            assert "must begin with" in theirs["failed"][UNSURE]
            assert by[ABSENT.name, work, connections]["error"] == "not installed: no network"
        images = {by[name, work, 8]["image"] for name in (CONVOY.name, STAND_IN.name)}
        assert len(images) == 1
    assert "must begin with" in by[STAND_IN.name, DIGITS, 8]["failed"][WRONG]
    printed = capsys.readouterr().out
    assert "round 2 of 2: Stand-in" in printed
    assert "| Stand-in | good |" in printed


def test_every_other_round_runs_backwards_and_who_failed_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"a": Setting("any"), "b": Setting("any", {"answers": 5}), "c": Setting("any")}
    contenders = [Contender(Peer(n, n, (), COMMAND, (s,)), HERE) for n, s in names.items()]
    said: list[str] = []
    monkeypatch.setattr(comparison, "_warm_up", lambda *_: None)  # which asks more often
    rows = measure(contenders, NOOP, NOTHING, Effort(3, 0.05), tmp_path, said.append)
    rounds = [line[-1] for line in said if "round" in line]
    assert "".join(rounds) == "abccaac"
    assert {row.get("error", "")[:12] for row in rows if row["server"] == "b"} == {"HTTP/1.1 503"}
    assert all("error" not in row for row in rows if row["server"] != "b")


def test_each_number_of_connections_has_the_best_setting_and_only_its_server_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates are made up: "fast" is best with one connection, "wide" with more. Each is slower
    than the others once."""
    settings = (Setting("slow"), Setting("fast"), Setting("wide"), Setting("ends"))
    rates = {"slow": (1, 1, 1), "fast": (9, 2, 2), "wide": (2, 9, 9)}
    turns: list[list[tuple[str, int]]] = []

    def turn(chosen: Any, _: float) -> None:
        candidates = {id(each): each for each in chosen.values()}.values()
        turns.append([(each.setting.name, len(each.server.pids())) for each in candidates])
        names = [name for ((name, _),) in turns[:-1]] if len(candidates) == 1 else []
        for number, (connections, each) in enumerate(chosen.items()):
            if each.setting.name == "ends":
                raise ClosedError
            rate = rates[each.setting.name][number] + (-2 if names.count(each.setting.name) else 2)
            each.slices[connections].append({"n": 1, "requests_a_second": float(rate)})

    monkeypatch.setattr(comparison, "_turn", turn)
    contender = Contender(Peer("a", "a", (), COMMAND, settings), HERE)
    rows = measure([contender], NOOP, NOTHING, Effort(1, 0.1), tmp_path, lambda _: None)
    assert [row["setting"] for row in rows] == ["fast", "wide", "wide"]
    assert rows[0]["tried"] == {"slow": 1, "fast": 9, "wide": 2}
    assert [name for ((name, _),) in turns[:-1]] == [
        *("slow", "fast", "wide", "ends"),
        *("wide", "fast", "slow"),
    ]
    assert turns[-1] == [("fast", 1), ("wide", 1)]


@pytest.mark.parametrize(("closes", "error"), [(2, None), (99, "the server closed the connection")])
def test_a_server_that_closes_connections_at_first_is_measured_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: int, error: str | None
) -> None:
    calls = 0

    def loop(address: Address, *arguments: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if calls <= closes:
            raise ClosedError
        return closed_loop(address, *arguments)

    monkeypatch.setattr(comparison, "closed_loop", loop)
    contender = Contender(Peer("a", "a", (), COMMAND, (Setting("any"),)), HERE)
    rows = measure([contender], NOOP, NOTHING, Effort(1, 0.1), tmp_path, lambda _: None)
    assert {row.get("error") for row in rows} == {error}


# Environments


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
    assert (folder_of("litserve", requirements(LITSERVE), tmp_path) / DONE).is_file()


def test_what_convoy_needs_is_measured_without_what_its_tests_need() -> None:
    names = {package.name.lower() for package in needed_by(CONVOY.package)}
    assert {"fastapi", "starlette", "onnxruntime", "numpy"} <= names
    assert not {"pytest", "mypy", "aiohttp", "grpcio"} & names
    assert 50 < size_mb(needed_by(CONVOY.package)) < 2000


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--seconds", "0"], ["--peers", "xyz"]])
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        peers.parse_arguments(arguments)


def test_a_quick_run_is_shorter_in_every_way() -> None:
    full, quick = (peers.parse_arguments(each).effort for each in ([], ["--quick"]))
    assert quick.seconds < full.seconds
    assert quick.rounds < full.rounds
    assert (quick.settings, full.settings) == (1, None)
    assert peers.parse_arguments(["--quick", "--seconds", "3"]).effort.seconds == 3
