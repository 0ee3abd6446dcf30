"""Measures several servers with the same images and model, one after another in short rounds. While
a server is measured, all other servers are suspended.

    each server in each setting ─ start ─ right answers? ─ fair? ─ tried briefly ─┐
                     the best setting for each number of connections ─────────────┘
    rounds: each server ─ goes on ─ 1, 8, 32 connections ─ is stopped; every other round backwards

Servers that run at the same time would slow each other down on two cores. Even idle servers would,
because some of them poll. A suspended server uses no processor time, and resuming it takes no time,
so rounds can be short. A disturbance that lasts a minute then affects all servers.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter, sleep
from typing import Any

import numpy as np

from benchmarks.environments import Environment
from benchmarks.peers import fairness
from benchmarks.peers.catalogue import MAX_BATCH, TOLD, Peer, Setting, request_for
from benchmarks.peers.fairness import Conditions, UnfairError
from benchmarks.peers.processes import Running, StartError, running
from benchmarks.peers.servers.work import Settings
from benchmarks.peers.works import NOOP, Case, Task, channels
from benchmarks.serving.http_client import (
    Address,
    BadAnswerError,
    ClosedError,
    Connection,
    closed_loop,
    free_port,
)
from service.machine.cores import available_cores

CONNECTIONS = (1, 8, 32)

# The begin of `error` in a row without numbers, if the server is not installed.
NOT_INSTALLED = "not installed"

# How often each setting is tried. As in the later measurement, servers take turns, because some are
# slow for a long time after they were suspended.
_TRIES = 2

# Before each measurement, a resumed server is warmed up for this share of the measurement's time,
# so that its caches are filled.
_WARM = 0.2

# Seconds in which a resumed server does the work that became due while it was suspended.
_SETTLE_S = 0.2

# A server may close connections during all but the last of these warm-ups.
_WARM_UPS = 5

_FAILURES = (StartError, BadAnswerError, UnfairError, OSError)

Top = Sequence[tuple[int, float]]
"""Classes and their probabilities, the likeliest first."""

Say = Callable[[str], None]


class WrongAnswerError(BadAnswerError):
    """Raised when a server's answer differs from Convoy's answer. The message shows the
    difference."""


@dataclass(frozen=True)
class Contender:
    """A server to measure, and the environment in which it is installed. If the installation
    failed, `lacks` has the reason."""

    peer: Peer
    installed: Environment | None
    lacks: str = ""


@dataclass(frozen=True)
class Effort:
    """Sets how long to measure: `rounds` rounds of `seconds` for each number of connections."""

    rounds: int
    seconds: float
    settings: int | None = None  # the number tried for each server; None: all


@dataclass
class Candidate:
    """A running server with its setting, and the results of its measurements."""

    peer: Peer
    setting: Setting
    server: Running
    request: bytes
    conditions: Conditions
    idle_mb: float
    # The results of each turn, by number of connections.
    slices: dict[int, list[dict[str, float]]] = field(
        default_factory=lambda: {connections: [] for connections in CONNECTIONS}
    )
    # The requests per second of each tried setting, by number of connections.
    others: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def tried(self, connections: int) -> float:
        """Return the mean requests per second over all measurements so far, or 0 if there are
        none."""
        rates = [found["requests_a_second"] for found in self.slices[connections]]
        return round(sum(rates) / len(rates), 2) if rates else 0.0

    @property
    def about(self) -> str:
        """Return the server's name with its setting."""
        return f"{self.peer.name}, {self.setting.name}"


@contextmanager
def started(
    contender: Contender, setting: Setting, work: str, task: Task, folder: Path
) -> Iterator[Running]:
    """Start a server in one setting, and yield it once its answer to the first image is right.

    Only this server uses `folder`. Raises StartError if the server does not start, and
    WrongAnswerError if the answer is wrong.
    """
    assert contender.installed is not None
    peer, port = contender.peer, free_port()
    threads = threads_of(peer, setting, task)
    settings = settings_of(work, task, threads, port, folder, setting.choices)
    command, options = peer.command, ()
    if peer.serve is not None and work != NOOP:
        command, options = peer.serve, (*task.options, *setting.choices.get("options", ()))
    program, *arguments = (part.format(port=port) for part in command)
    environment = {
        **peer.environment,
        **setting.environment,
        "PEER_SETTINGS": json.dumps(asdict(settings)),
    }
    request = request_for(setting.protocol, peer.path, task.cases[0].image, "image/jpeg")

    def ready(address: Address) -> bool:
        try:
            connection = Connection(address)
        except OSError:
            return False
        try:
            right(connection.exchange(request), task.cases[0], task.within)
        except WrongAnswerError:
            raise
        except (OSError, BadAnswerError):
            return False
        finally:
            connection.close()
        return True

    full = [contender.installed.program(program), *arguments, *options]
    with running(full, environment, folder, port, ready) as server:
        yield server


def settings_of(
    work: str, task: Task, threads: int, port: int, folder: Path, choices: Mapping[str, Any]
) -> Settings:
    """Return the settings to pass to a server's program."""
    how = task.classifier.preprocessing if task.classifier else None
    return Settings(
        port=port,
        work=work,
        model=str(task.model),
        resize=how.resize if how else 0,
        side=how.height if how else 0,
        channels=channels(task) if how else "",
        logits=task.logits,
        threads=threads,
        facts=str(folder),
        choices=dict(choices),
    )


def threads_of(peer: Peer, setting: Setting, task: Task) -> int:
    """Return how many threads each process of a server must use to run the model. Convoy uses one
    thread per core, its default. Another server divides the number of threads that the work sets
    among its processes."""
    if peer.serve is not None:
        return available_cores()
    return max(1, task.threads // setting.processes)


def top_of(received: bytes) -> Top:
    """Return the classes and probabilities in a server's answer, in any server's format. Raises
    WrongAnswerError if the answer has none."""
    _, _, body = received.partition(b"\r\n\r\n")
    answer = json.loads(body)
    found = _predictions(answer)
    if not found:
        raise WrongAnswerError(f"the answer must have predictions, got {body[:200]!r}")
    return [(prediction["index"], prediction["probability"]) for prediction in found]


def _predictions(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict) and "predictions" in value:
        found: list[dict[str, Any]] = value["predictions"]
        return found
    if isinstance(value, dict) and value.get("datatype") == "BYTES":  # "probability:index"
        parts = [text.split(":") for text in value["data"]]
        return [{"index": int(index), "probability": float(p)} for p, index in parts]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for value in inner if (found := _predictions(value))), [])


def right(received: bytes, case: Case, within: float) -> None:
    """Raise WrongAnswerError if an answer differs from the answer of Convoy's engine."""
    top, (index, probability) = top_of(received), case.best
    known = len(top) == 5 and (index is None or top[0][0] == index)
    if not known or abs(top[0][1] - probability) > within:
        raise WrongAnswerError(f"the answer must begin with {case.best}, got {list(top)}")


def check(address: Address, peer: Peer, setting: Setting, task: Task) -> None:
    """Send all images to a server. Raise WrongAnswerError if an answer differs from the answer of
    Convoy's engine."""
    connection = Connection(address)
    try:
        for case in task.cases:
            request = request_for(setting.protocol, peer.path, case.image, case.media_type)
            right(connection.exchange(request), case, task.within)
    finally:
        connection.close()


def measure(
    contenders: Sequence[Contender], work: str, task: Task, effort: Effort, folder: Path, say: Say
) -> list[dict[str, Any]]:
    """Return a row for each server and number of connections. If a server could not be measured,
    its row has the reason in `error`.

    First all settings of a server are tried; then the server is measured in its best setting.
    """
    failed: dict[str, dict[str, str]] = {}
    with ExitStack() as stack:
        best: dict[str, dict[int, Candidate]] = {}
        for contender in contenders:
            name = contender.peer.name
            failed[name] = {"": f"{NOT_INSTALLED}: {contender.lacks}"} if contender.lacks else {}
            if not contender.lacks:
                best[name] = _best(stack, contender, work, task, effort, folder, failed[name], say)
        order = [(name, chosen) for name, chosen in best.items() if chosen]
        for turn in range(effort.rounds):
            for name, chosen in order if turn % 2 == 0 else reversed(order):
                if "" in failed[name]:
                    continue
                say(f"{work}, round {turn + 1} of {effort.rounds}: {name}")
                try:
                    _turn(chosen, effort.seconds)
                except _FAILURES as error:
                    failed[name][""] = _told(error)
                    say(f"{name}: {_told(error)}")
        return [
            _row(contender, work, task, connections, best.get(contender.peer.name), failed)
            for contender in contenders
            for connections in CONNECTIONS
        ]


def _told(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _best(
    stack: ExitStack,
    contender: Contender,
    work: str,
    task: Task,
    effort: Effort,
    folder: Path,
    failed: dict[str, str],
    say: Say,
) -> dict[int, Candidate]:
    """Start a server in each setting, and try it briefly. For each number of connections, return
    the server that runs in the best setting, and suspend it.

    Servers that are not best for any number of connections are ended.
    """
    tried: list[tuple[Candidate, ExitStack]] = []
    settings = contender.peer.settings[: effort.settings]
    for setting in settings:
        say(f"{work}, starting: {contender.peer.name}, {setting.name}")
        own = stack.enter_context(ExitStack())
        try:
            # The path must be short: Ray creates sockets below it, and a socket's path has at most
            # 107 bytes.
            place = Path(mkdtemp(dir=folder))
            server = own.enter_context(started(contender, setting, work, task, place))
            tried.append((_checked(contender.peer, setting, server, task, effort.seconds), own))
        except _FAILURES as error:
            own.close()
            failed[setting.name] = _told(error)
            say(f"{contender.peer.name}, {setting.name}: {_told(error)}")
    for turn in range(_TRIES if len(settings) > 1 else 0):
        for candidate, own in tried if turn % 2 == 0 else tried[::-1]:
            say(f"{work}, trying: {candidate.about}")
            try:
                _turn(dict.fromkeys(CONNECTIONS, candidate), effort.seconds)
            except _FAILURES as error:
                own.close()
                failed[candidate.setting.name] = _told(error)
                say(f"{candidate.about}: {_told(error)}")
        tried = [each for each in tried if each[0].setting.name not in failed]
    if not tried:
        return {}
    best = {
        connections: max((each for each, _ in tried), key=lambda each: each.tried(connections))
        for connections in CONNECTIONS
    }
    for candidate, own in tried:
        if all(candidate is not each for each in best.values()):
            own.close()
    rates = {
        each.setting.name: {connections: each.tried(connections) for connections in CONNECTIONS}
        for each, _ in tried
    }
    for candidate, _ in tried:
        candidate.others = rates
        candidate.slices = {connections: [] for connections in CONNECTIONS}
    return best


def _checked(
    peer: Peer, setting: Setting, server: Running, task: Task, seconds: float
) -> Candidate:
    """Check a server's answers and its conditions, such as threads and cores. Then suspend the
    server."""
    case = task.cases[0]
    request = request_for(setting.protocol, peer.path, case.image, case.media_type)
    _warm_up(server.address, peer, setting, task, request, seconds)
    threads = threads_of(peer, setting, task)
    conditions = fairness.found(server, threads)
    fairness.check(conditions, fairness.wanted(threads), request, case.image)
    candidate = Candidate(peer, setting, server, request, conditions, server.usage().memory_mb)
    server.pause()
    return candidate


def _warm_up(
    address: Address, peer: Peer, setting: Setting, task: Task, request: bytes, seconds: float
) -> None:
    """Check the answers, and send requests until the server stops closing connections.

    Ray restarts HAProxy shortly after the first answer. This restart closes open connections.
    """
    for last in (*[False] * (_WARM_UPS - 1), True):
        try:
            check(address, peer, setting, task)
            closed_loop(address, request, MAX_BATCH, seconds)
        except ClosedError:
            if last:
                raise
        else:
            return


def _turn(chosen: Mapping[int, Candidate], seconds: float) -> None:
    """Run one round: measure the servers one after another. A server is measured with the numbers
    of connections for which its setting is the best."""
    for candidate in {id(each): each for each in chosen.values()}.values():
        server = candidate.server
        server.resume()
        try:
            sleep(_SETTLE_S)
            for connections, each in chosen.items():
                if each is candidate:
                    candidate.slices[connections].append(_slice(candidate, connections, seconds))
        finally:
            server.pause()


def _slice(candidate: Candidate, connections: int, seconds: float) -> dict[str, float]:
    """Measure a server for `seconds` with a number of connections, and return the results.
    `memory_mb` and `threads` are read after the measurement."""
    server, request = candidate.server, candidate.request
    closed_loop(server.address, request, connections, seconds * _WARM)
    before, begun = server.usage(), perf_counter()
    times = closed_loop(server.address, request, connections, seconds)
    took, after = perf_counter() - begun, server.usage()
    p50, p99 = map(float, np.quantile(times, (0.5, 0.99)))
    return {
        "n": len(times),
        "requests_a_second": round(len(times) / took, 2),
        "p50_ms": round(p50 * 1e3, 4),
        "p99_ms": round(p99 * 1e3, 4),
        "cpu_ms": round(after.cpu_s_since(before) * 1e3 / len(times), 4),
        "switches": round(after.switches_since(before) / len(times), 2),
        "memory_mb": round(after.memory_mb, 1),
        "threads": after.threads,
    }


def _row(
    contender: Contender,
    work: str,
    task: Task,
    connections: int,
    best: Mapping[int, Candidate] | None,
    failed: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    peer = contender.peer
    row = {"server": peer.name, "work": work, "connections": connections}
    reasons = failed[peer.name]
    if not best or "" in reasons:
        return {**row, "error": "; ".join(reasons.values())}
    candidate = best[connections]
    versions = contender.installed.versions if contender.installed else {}
    found = candidate.slices[connections]
    conditions = candidate.conditions
    return {
        **row,
        "setting": candidate.setting.name,
        "version": versions.get(peer.package, ""),
        "versions": {name: value for name, value in versions.items() if name in TOLD},
        "tried": {name: rates[connections] for name, rates in candidate.others.items()},
        "failed": dict(reasons),
        "image": task.cases[0].digest,
        "model": task.digest,
        "telemetry": "off" if conditions.telemetry == fairness.OFF else conditions.telemetry,
        "affinity": conditions.affinity,
        "priority": conditions.priority,
        "threads_each": conditions.threads,
        "threads_fair": str(threads_of(peer, candidate.setting, task)),
        "start_s": round(candidate.server.start_s, 2),
        "idle_mb": round(candidate.idle_mb, 1),
        "n": sum(each["n"] for each in found),
        **{name: [each[name] for each in found] for name in found[0] if name != "n"},
    }
