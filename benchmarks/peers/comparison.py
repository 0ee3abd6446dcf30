"""Measures servers in turn, while no other one runs on the machine.

Two cores are too few for several of these servers at once, even idle: some of them poll. So each is
started for its turn, checked, warmed, measured and stopped, in several rounds, every other one
backwards.
"""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.environments import Environment
from benchmarks.peers.catalogue import (
    MAX_BATCH,
    PROTOCOL,
    TOLD,
    Peer,
    Protocol,
    Setting,
    request_for,
)
from benchmarks.peers.processes import StartError, running
from benchmarks.peers.servers.work import Settings, answer
from benchmarks.serving.http_client import (
    Address,
    BadAnswerError,
    ClosedError,
    Connection,
    address_of,
    closed_loop,
    free_port,
)
from benchmarks.serving.overhead import BODY_BYTES, jpeg_of, serving, wait_until_ready
from benchmarks.serving.served import logged
from benchmarks.serving.targets import CONVOY, no_op
from loadtest.images import SAMPLES, load_images
from models import BUILT_IN_MODEL, DeviceKind, load_classifier, open_engine
from models.engines.normalised import with_normalisation
from service.images.prepare import ImageLimits, prepare_image

NOOP, DIGITS = "noop", "digits"
WORKS = {
    NOOP: f"no-op: a body of {BODY_BYTES // 1000} kB is read, 1000 scores, the 5 likeliest",
    DIGITS: "digits: a JPEG of 640 × 480 is decoded and classified by ONNX Runtime on the CPU",
}
CONNECTIONS = (1, 8)

# Times that a server may close connections before it is measured.
_WARM_UPS = 5

# How the reason begins why a peer has no numbers.
NOT_INSTALLED = "not installed"

# The image that digits is timed with; all are checked.
TIMED = "1_pencil_on_paper.jpg"

Top = Sequence[tuple[int, float]]
"""Classes and their probabilities, likeliest first."""


class WrongAnswerError(Exception):
    """Says how an answer differs from Convoy's."""


@dataclass(frozen=True)
class Case:
    """Holds an image and its right class, or None if all classes are equally likely."""

    image: bytes
    media_type: str
    best: tuple[int | None, float]


@dataclass(frozen=True)
class Material:
    """Holds the images for each kind of work, the timed one first, and the model that peers run."""

    cases: Mapping[str, Sequence[Case]]
    model: Path
    side: int


Open = Callable[[str, bytes], AbstractContextManager[Address]]
"""Starts a server for a kind of work; the server is ready when it answers the request."""


@dataclass(frozen=True)
class Contender:
    """Describes a server in one setting, and the fields that its rows have."""

    server: str
    setting: str
    path: str
    protocol: Protocol
    open: Open
    stands: Mapping[str, Any] = field(default_factory=dict)

    def request(self, case: Case) -> bytes:
        """Return the request for an image's classes."""
        return request_for(self.protocol, self.path, case.image, case.media_type)


def material(folder: Path) -> Material:
    """Return images with the results of Convoy's engine, and write the model below `folder`."""
    classifier = load_classifier(BUILT_IN_MODEL, overrides={})
    preprocessing = classifier.preprocessing
    model = folder / "digits.onnx"
    # As Convoy's engine runs it: bytes in, normalisation within the graph.
    proto = with_normalisation(classifier.network.proto, preprocessing)
    model.write_bytes(proto.SerializeToString())
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=1, threads=0)
    digits = []
    for image in sorted(load_images(SAMPLES), key=lambda file: file.name != TIMED):
        pixels = prepare_image(image.data, preprocessing, ImageLimits()).run()
        (row,) = engine.run(pixels[np.newaxis]).scores
        top = answer(row)["predictions"][0]
        best = (int(top["index"]), top["probability"])
        digits.append(Case(image.data, image.media_type, best))
    engine.close()
    noop = Case(jpeg_of(BODY_BYTES), "image/jpeg", (None, 0.001))
    return Material({NOOP: [noop], DIGITS: digits}, model, preprocessing.height)


def of_convoy() -> Contender:
    """Return Convoy as a contender, either the application with a no-op engine or `convoy
    serve`."""

    @contextmanager
    def opened(work: str, _: bytes) -> Iterator[Address]:
        if work == NOOP:
            with serving(no_op(0)) as address:
                wait_until_ready(address)
                yield address
            return
        with TemporaryFile("w+") as log, ExitStack() as stack:
            options = [str(BUILT_IN_MODEL), "--device", "cpu", "--no-access-log"]
            try:
                url = stack.enter_context(logged(options, log))[1]
            except SystemExit as error:
                raise StartError(str(error)) from error
            yield address_of(url)

    return Contender(CONVOY, "as it comes", "/v1/classify", "body", opened)


def of_peer(
    peer: Peer, setting: Setting, installed: Environment, given: Material, folder: Path
) -> Contender:
    """Return a peer in one of its settings as a contender; `folder` is for it alone."""

    @contextmanager
    def opened(work: str, request: bytes) -> Iterator[Address]:
        port = free_port()
        settings = Settings(port, work, str(given.model), given.side, dict(setting.choices))
        program, *arguments = (part.format(port=port) for part in peer.command)
        environment = {
            **peer.environment,
            **setting.environment,
            "CONVOY_PEER": json.dumps(asdict(settings)),
        }
        command = [installed.program(program), *arguments]
        with running(command, environment, folder, port, request) as address:
            yield address

    stands = {
        "choices": dict(setting.choices),
        "environment": {**peer.environment, **setting.environment},
        "versions": {n: v for n, v in installed.versions.items() if n in (peer.package, *TOLD)},
    }
    return Contender(peer.name, setting.name, "/predict", setting.protocol, opened, stands)


def top_of(received: bytes) -> Top:
    """Return the classes in an answer, in whatever form. Raises WrongAnswerError if it has none."""
    _, _, body = received.partition(b"\r\n\r\n")
    found = _predictions(json.loads(body))
    if not found:
        raise WrongAnswerError(f"no predictions in {body[:200]!r}")
    return [(prediction["index"], prediction["probability"]) for prediction in found]


def _predictions(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict) and "predictions" in value:
        found: list[dict[str, Any]] = value["predictions"]
        return found
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for value in inner if (found := _predictions(value))), [])


def check(address: Address, contender: Contender, cases: Sequence[Case]) -> None:
    """Raise WrongAnswerError if a server's answers differ from those of Convoy's engine."""
    connection = Connection(address)
    try:
        for case in cases:
            top = top_of(connection.exchange(contender.request(case)))
            index, probability = case.best
            right = len(top) == 5 and (index is None or top[0][0] == index)
            if not right or abs(top[0][1] - probability) > 0.005:
                raise WrongAnswerError(f"{list(top)}, where {case.best} is right")
    finally:
        connection.close()


@dataclass
class Tally:
    """Holds a contender's results in all rounds for one kind of work and number of connections."""

    seconds: list[float] = field(default_factory=list)
    spent: float = 0.0
    rates: list[float] = field(default_factory=list)  # requests a second in each round


def measure(
    contenders: Sequence[Contender],
    given: Material,
    works: Sequence[str],
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return a row for each contender, kind of work and number of connections.

    A row has `error` where there is no number.
    """
    taken: dict[tuple[int, str, int], Tally] = {}
    failed: dict[tuple[int, str], str] = {}
    turns = [(number, work) for work in works for number in range(len(contenders))]
    for turn in range(rounds):
        for number, work in turns if turn % 2 == 0 else reversed(turns):
            if (number, work) in failed:
                continue
            contender = contenders[number]
            about = f"round {turn + 1} of {rounds}, {work}: {contender.server}, {contender.setting}"
            say(about)
            try:
                for connections, (times, spent) in _turn(
                    contender, given.cases[work], work, seconds
                ).items():
                    sum_ = taken.setdefault((number, work, connections), Tally())
                    sum_.seconds += times
                    sum_.spent += spent
                    sum_.rates.append(round(len(times) / spent, 2))
            except (StartError, WrongAnswerError, BadAnswerError, OSError) as error:
                failed[number, work] = " ".join(str(error).split()) or type(error).__name__
                say(f"{about}: {failed[number, work]}")
    return [
        _row(
            contenders[number],
            work,
            connections,
            failed.get((number, work)) or taken[number, work, connections],
            given,
        )
        for number, work in turns
        for connections in CONNECTIONS
    ]


def missing(peer: Peer, reason: str, works: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a peer that is not installed."""
    return [
        {
            "server": peer.name,
            "setting": "",
            "work": work,
            "connections": n,
            "error": f"{NOT_INSTALLED}: {reason}",
        }
        for work in works
        for n in CONNECTIONS
    ]


def _turn(
    contender: Contender, cases: Sequence[Case], work: str, seconds: float
) -> dict[int, tuple[list[float], float]]:
    """Return, by number of connections, the seconds of each request and of all together."""
    request = contender.request(cases[0])
    result = {}
    with contender.open(work, request) as address:
        _warm_up(address, contender, cases, seconds / 2)
        for connections in CONNECTIONS:
            begin = perf_counter()
            times = closed_loop(address, request, connections, seconds)
            result[connections] = (times, perf_counter() - begin)
    return result


def _warm_up(address: Address, contender: Contender, cases: Sequence[Case], seconds: float) -> None:
    """Check the answers, and send requests until the server stops closing connections.

    Ray starts HAProxy anew a moment after it first answers, which ends connections that are open.
    """
    for last in (*[False] * (_WARM_UPS - 1), True):
        try:
            check(address, contender, cases)
            closed_loop(address, contender.request(cases[0]), MAX_BATCH, seconds)
        except ClosedError:
            if last:
                raise
        else:
            return


def _row(
    contender: Contender, work: str, connections: int, found: Tally | str, given: Material
) -> dict[str, Any]:
    row = {
        "server": contender.server,
        "setting": contender.setting,
        **contender.stands,
        "protocol": PROTOCOL[contender.protocol],
        "work": work,
        "picture_bytes": len(given.cases[work][0].image),
        "connections": connections,
    }
    if isinstance(found, str):
        return {**row, "error": found}
    cuts = statistics.quantiles(found.seconds, n=100, method="inclusive")
    return {
        **row,
        "n": len(found.seconds),
        "requests_a_second": round(len(found.seconds) / found.spent, 2),
        "in_each_round": found.rates,
        "p50_ms": round(cuts[49] * 1e3, 4),
        "p99_ms": round(cuts[98] * 1e3, 4),
    }
