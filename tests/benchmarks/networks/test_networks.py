"""Whole networks compared with made-up sides; Convoy runs on the simulated device."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.networks.c3d import C3D, c3d
from benchmarks.networks.light import classifier, images_of
from benchmarks.networks.measure import DifferentScoresError, chosen, measure
from benchmarks.networks.sides import AfterUpload, ConvoyNetwork
from benchmarks.networks.switches import SWITCHES, VARIANTS, switched
from cusim.device import CusimDevice
from cusim.streams import CusimGraph, PendingLaunch
from kernels.tuning.autotune import Search
from kernels.tuning.heuristic import heuristic
from kernels.tuning.store import TuningStore
from models import BUILT_IN_MODEL, load_classifier
from models.classifier import Classifier
from models.engines.engine import Batch, Results, Scores
from models.tuning.measured import conv_problems
from tests.support.kernels.null_device import NullDevice
from tests.support.models.engines import branching


@pytest.fixture(scope="module")
def digits() -> Classifier:
    return load_classifier(BUILT_IN_MODEL)


class MadeUp:
    """A side that returns these scores, and takes this time on the device."""

    def __init__(self, name: str, us: float = 1.0, scores: tuple[float, ...] = (1.0, 0.5)) -> None:
        self.name, self.us, self.scores = name, us, scores
        self.closed = False

    def run(self, images: Batch) -> Results:
        return Results(np.tile(np.array(self.scores, np.float32), (len(images), 1)))

    def queued_us(self, runs: int) -> list[float]:
        return [self.us] * runs

    def close(self) -> None:
        self.closed = True


IMAGES = np.zeros((2, 4, 4, 3), np.uint8)


def test_convoys_engine_is_timed_on_the_device_and_end_to_end(
    device: CusimDevice, digits: Classifier
) -> None:
    images = images_of(digits, 2)
    side = ConvoyNetwork(digits, device, 2, heuristic(device))
    assert list(side.plans) == [2]
    ((first, second),) = measure("digits", 2, {"convoy": lambda: side}, images, ["convoy"], 3)
    assert (first["metric"], second["metric"]) == ("device", "end to end")
    for row in (first, second):
        assert (row["network"], row["n"], row["side"], row["runs"]) == ("digits", 2, "convoy", 3)
        assert 0 < row["p20_us"] <= row["p50_us"] <= row["p80_us"]


@pytest.mark.slow
def test_each_switch_changes_one_thing_and_no_score(
    device: CusimDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.engines.cuda_engine.kernel_reads_host", lambda _: False)
    monkeypatch.setattr("models.engines.cuda_engine.time.pays", lambda *_, machine: True)
    network = branching()
    images, others = images_of(network, 2), images_of(network, 2, seed=1)
    seen: dict[str, list[int]] = {}
    scores: dict[str, Scores] = {}
    for switch in ("", *SWITCHES):
        side = ConvoyNetwork(network, device, 2, heuristic(device), switch)
        side.run(others)
        scores[switch] = side.run(images).scores
        assert len(side.queued_us(2)) == 2
        replay = side._replays[side._only].graph
        if isinstance(replay, AfterUpload):
            replay = replay.graph
        assert isinstance(replay, CusimGraph)
        launches = [node.work for node in replay.nodes if isinstance(node.work, PendingLaunch)]
        seen[switch] = [
            len(replay.nodes) - len(launches),  # copies
            max(len(node.after) for node in replay.nodes),
            sum(launch.early for launch in launches),
        ]
        compiled = {kernel.instantiation.variants for kernel in side._kernels.values()}
        assert compiled == {(VARIANTS[switch],) if switch in VARIANTS else ()}
        side.close()
    (copies, joined, early), *_ = seen.values()
    assert copies == 1
    assert joined > 1
    assert early > 0
    assert seen == {
        "": [1, joined, early],
        "without dependent launches": [1, joined, 0],
        "without branches": [1, 1, seen["without branches"][2]],
        "without one graph": [0, joined, early],
        **{switch: [1, joined, early] for switch in VARIANTS},
    }
    assert seen["without branches"][2] > early
    assert all((each == scores[""]).all() for each in scores.values())


def test_a_switch_of_a_wrong_name_is_refused_with_those_that_there_are(digits: Classifier) -> None:
    device = NullDevice()
    says = "'dependent launches' is not a switch; the switches are without dependent"
    with pytest.raises(ValueError, match=says):
        ConvoyNetwork(digits, device, 1, heuristic(device), "dependent launches")
    with pytest.raises(ValueError, match=says):
        switched("dependent launches")


def test_images_and_clips_are_made_in_the_shape_a_network_takes(digits: Classifier) -> None:
    clips = classifier("C3D", c3d(C3D(clip=(4, 14, 14), filters=(4,), hidden=4, classes=3)))
    for network, shape in ((digits, digits.preprocessing.image_shape), (clips, (4, 14, 14, 3))):
        images = images_of(network, 2)
        assert images.shape == (2, *shape)
        assert images.std() > 30
        assert not np.array_equal(images[0], images[1])


def test_each_side_is_measured_and_convoys_scores_are_the_measure() -> None:
    sides = {name: MadeUp(name, us) for name, us in (("convoy", 2), ("a", 3), ("b", 5))}
    made: list[str] = []

    def maker(name: str) -> MadeUp:
        made.append(name)
        return sides[name]

    makers = {name: (lambda name=name: maker(name)) for name in sides}
    found = list(measure("net", 2, makers, IMAGES, ["convoy", "b"], 2))
    rows = [row for rows in found for row in rows]
    assert [(row["side"], row["metric"]) for row in rows] == [
        ("convoy", "device"),
        ("convoy", "end to end"),
        ("b", "device"),
        ("b", "end to end"),
    ]
    assert [row["p50_us"] for row in rows if row["metric"] == "device"] == [2, 5]
    assert made == ["convoy", "b"]
    assert sides["convoy"].closed


@pytest.mark.parametrize("scores", [(1.002, 0.5), (1.0, 0.498), (float("nan"), 0.5)])
def test_a_side_with_other_scores_is_not_timed(scores: tuple[float, ...]) -> None:
    makers = {"convoy": lambda: MadeUp("convoy"), "other": lambda: MadeUp("other", 1.0, scores)}
    rows = measure("net", 2, makers, IMAGES, ["other"], 2)
    with pytest.raises(DifferentScoresError, match="scores of other must equal Convoy's"):
        list(rows)


@pytest.mark.slow
def test_the_tuner_chooses_among_what_it_measured(
    device: CusimDevice, tmp_path: Path, digits: Classifier
) -> None:
    problems = list(conv_problems(digits.rewritten.graph, [1]))
    store = TuningStore(tmp_path / "tuning.json")
    by_tuner = chosen(device, digits, 1, store, Search(top=1))
    assert {key.problem for key in store.read()} == {str(problem) for problem in problems}
    for problem in problems:
        (outcomes,) = (each for key, each in store.read().items() if key.problem == str(problem))
        assert str(by_tuner(problem)) in outcomes
