"""Contests: with made-up times first, then with real kernels on the simulated device."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.contest import Cache, CandidateError, Effort, contest
from benchmarks.convoy_convolution import Workbench
from benchmarks.memory import Arena
from benchmarks.suites import same
from benchmarks.truth import Data, ReferenceTruth
from kernels.algorithms import ConvChoice, choices
from kernels.implicit_gemm import TILES, TileConfig
from kernels.timing import Copies, Timing, operand_sets
from tests.cusim.device import CusimDevice


@dataclass
class MadeUp:
    """A candidate that takes `us` with what is cold or warm, and says how often it was timed."""

    name: str
    us: Mapping[Cache, float]
    wrong: float = 1e-7
    refuses: str = ""
    timed: list[tuple[Cache, int, int]] = field(default_factory=list)

    def error(self) -> float:
        if self.refuses == "to run":
            raise CandidateError("too large")
        return self.wrong

    def copies(self, cache: Cache, copies: int) -> Copies:
        if self.refuses == cache.value:
            raise CandidateError("no memory")

        class Samples:
            @staticmethod
            def samples_us(replays: int) -> list[float]:
                self.timed.append((cache, copies, replays))
                return [self.us[cache]] * max(replays, 2)

        return cast(Copies, Samples())


def made_up(name: str, warm: float, cold: float | None = None, **options: Any) -> MadeUp:
    return MadeUp(name, {Cache.WARM: warm, Cache.COLD: cold or warm}, **options)


def test_the_fastest_warm_and_the_fastest_cold_win_with_all_replays() -> None:
    candidates = [made_up("a", 10, 30), made_up("b", 11, 20), made_up("c", 12, 25)]
    outcome = contest(candidates)
    assert {cache: winner.name for cache, winner in outcome.winners.items()} == {
        Cache.WARM: "a",
        Cache.COLD: "b",
    }
    assert outcome.winners[Cache.COLD].timing == Timing(20, 20, 20)
    assert outcome.winners[Cache.COLD].error == 1e-7
    assert (Cache.WARM, 20, 200) in candidates[0].timed
    assert (Cache.COLD, 20, 200) in candidates[1].timed
    assert (Cache.COLD, 20, 200) not in candidates[0].timed
    assert outcome.tried == 3
    assert outcome.refused == {}


def test_only_the_three_fastest_are_timed_cold() -> None:
    candidates = [made_up(str(us), us) for us in (14, 12, 10, 11, 13)]
    contest(candidates)
    cold = {each.name for each in candidates for cache, *_ in each.timed if cache is Cache.COLD}
    assert cold == {"10", "11", "12"}


def test_what_is_slow_when_probed_is_not_run_often() -> None:
    fast, slow, fair = made_up("fast", 10), made_up("slow", 15.1), made_up("fair", 14.9)
    contest([fast, slow, fair])
    assert slow.timed == [(Cache.WARM, 2, 1)]
    assert (Cache.WARM, 5, 10) in fair.timed


@pytest.mark.parametrize("error", [4e-5, 1.0, math.inf, math.nan])
def test_what_is_wrong_is_never_timed_however_fast(error: float) -> None:
    wrong, right = made_up("wrong", 1, wrong=error), made_up("right", 10)
    outcome = contest([wrong, right])
    assert {winner.name for winner in outcome.winners.values()} == {"right"}
    assert wrong.timed == []
    assert "wrong: relative error" in outcome.refused["wrong"]


def test_what_cannot_run_says_why_and_stops_nothing() -> None:
    candidates = [
        made_up("large", 1, refuses="to run"),
        made_up("cold", 2, refuses="cold"),
        made_up("right", 3),
    ]
    outcome = contest(candidates)
    assert outcome.refused == {"large": "too large", "cold": "no memory"}
    assert {cache: winner.name for cache, winner in outcome.winners.items()} == {
        Cache.WARM: "cold",
        Cache.COLD: "right",
    }


def test_where_nothing_can_run_nothing_wins() -> None:
    outcome = contest([made_up("large", 1, refuses="to run")])
    assert outcome.winners == {}
    assert outcome.tried == 1
    assert contest([]).winners == {}


QUICK = Effort(copies=2, replays=2, screen_copies=2, screen_replays=2)


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice()
    yield device
    device.close()


def workbench(device: CusimDevice, problem_data: Data) -> Workbench:
    truth = ReferenceTruth(device, problem_data)
    return Workbench(device, problem_data, truth, Arena(device, reuse_bytes=20_000))


def test_convoys_choices_are_right_and_the_fastest_is_found(device: CusimDevice) -> None:
    data = Data.of(same((5, 6), 3, 12, 20).with_batch(2))
    bench = workbench(device, data)
    every = choices(data.problem)
    some = [every[0], every[1], every[-1]]
    outcome = contest(map(bench.candidate, some), QUICK)
    bench.close()
    bench.arena.close()
    assert outcome.refused == {}
    assert outcome.tried == 3
    assert set(outcome.winners) == set(Cache)
    for winner in outcome.winners.values():
        assert winner.name in {str(choice) for choice in some}
        assert 0 < winner.error < 1e-6
        assert 0 < winner.timing.p20_us <= winner.timing.p80_us


def test_a_wrong_filter_and_an_output_left_out_show(device: CusimDevice) -> None:
    data = Data.of(same((4, 4), 3, 4, 4))
    bench = workbench(device, data)
    (choice, *_) = choices(data.problem)
    assert bench.candidate(choice).error() < 1e-6
    # The data on the device is the old one, the truth another's.
    bench.truth = ReferenceTruth(device, Data.of(data.problem, seed=1))
    assert bench.candidate(choice).error() > 1
    bench.truth = ReferenceTruth(device, data)

    class LeavesOut:
        def __getattr__(self, name: str) -> Any:
            return getattr(choice.algorithm, name)

        def launches(self, *arguments: Any) -> tuple[()]:
            return ()

    lazy = ConvChoice(cast(Any, LeavesOut()), choice.config)
    assert math.isnan(bench.candidate(lazy).error())
    bench.close()


def test_a_choice_that_the_device_cannot_run_is_refused(device: CusimDevice) -> None:
    data = Data.of(same((4, 4), 3, 4, 4))
    bench = workbench(device, data)
    (choice, *_) = choices(data.problem)
    (tile, *_) = TILES
    impossible = choice._replace(config=TileConfig(tile, split=2**20))
    with pytest.raises(CandidateError):
        bench.candidate(impossible).error()
    bench.close()


def test_cold_sets_are_as_many_as_are_needed_and_hold_numbers(device: CusimDevice) -> None:
    arena = Arena(device, reuse_bytes=10_000)
    sizes = {"x": 1000, "weight": 300}
    sets = arena.sets(sizes, {"y": 500})
    # Aligned, a set takes 1024 + 512 + 512 bytes.
    assert len(sets) == 10_000 // 2048 + 2
    begin = sets[0]["x"]
    assert [{name: each[name] for name in sizes} for each in sets] == operand_sets(
        begin, sizes, len(sets)
    )
    numbers = np.empty(len(sets) * 1536 // 4, np.float32)
    stream = device.stream()
    device.download(numbers, begin, stream)
    stream.synchronize()
    assert np.all(np.abs(numbers) <= 1)
    assert numbers.std() == pytest.approx(1 / np.sqrt(3), rel=0.1)
    larger = arena.sets({"x": 9000}, {"y": 500})  # makes room
    assert len(larger) == 3
    free = device.memory().free
    arena.close()
    assert device.memory().free > free
