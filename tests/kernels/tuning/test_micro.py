"""The model's assumptions, from readings of a simulated GPU with known constants."""

from dataclasses import fields, replace

import pytest

from cusim.device import CusimDevice
from kernels.device.device import Trigger
from kernels.tuning.constants import ASSUMED, CLOCK_HZ, Constants, cycles, microseconds
from kernels.tuning.micro import (
    CACHE_BYTES,
    ISSUE_TURNS,
    MEASUREMENTS,
    TURNS,
    WARPS,
    Effort,
    Reading,
    cache_bytes_per_cycle,
    fitted,
    laboratory,
)

MEASURED = Constants(
    launch_cycles=2500,
    overlapped_cycles=1200,
    fork_cycles=3000,
    cache_bytes_per_cycle=31,
    idle_warps=3.5,
)
_ADDITION = 4.0  # cycles
_ISSUED = 8.0  # cycles of a warp and turn


def readings(of: Constants) -> list[Reading]:
    """Return the readings of a GPU with these constants."""

    def chain_us(turns: int, trigger: Trigger, dependent: bool) -> float:
        overlaps = dependent and trigger is Trigger.START
        gap = of.overlapped_cycles if overlaps else of.launch_cycles
        return microseconds(gap + _ADDITION * turns)

    fork = 2 * of.fork_cycles + of.launch_cycles + 3 * _ADDITION * TURNS[1]
    return [
        *(
            Reading("cache", {"blocks": blocks}, microseconds(CACHE_BYTES / rate))
            for blocks, rate in ((1, 60.0), (66, 40.0), (132, of.cache_bytes_per_cycle))
        ),
        *(
            Reading(
                "chain",
                {"turns": turns, "trigger": trigger.name, "dependent": dependent},
                chain_us(turns, trigger, dependent),
            )
            for turns in TURNS
            for trigger in Trigger
            for dependent in (False, True)
        ),
        Reading("fork", {"turns": TURNS[1]}, microseconds(fork)),
        *(
            Reading(
                "issue",
                {"warps": warps, "turns": ISSUE_TURNS},
                microseconds(_ISSUED * ISSUE_TURNS * (warps + of.idle_warps)),
            )
            for warps in WARPS
        ),
    ]


def test_constants_are_found_again_from_what_a_gpu_of_them_shows() -> None:
    found = fitted(readings(MEASURED))
    for name in (field.name for field in fields(Constants)):
        assert getattr(found, name) == pytest.approx(getattr(MEASURED, name)), name
    assert found != ASSUMED


@pytest.mark.parametrize("name", ["cache", "chain", "fork", "issue"])
def test_a_missing_reading_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} was not measured"):
        fitted(each for each in readings(MEASURED) if each.name != name)


def test_cycles_are_of_the_models_clock() -> None:
    assert cycles(1.0) == CLOCK_HZ / 1e6
    assert microseconds(cycles(3.7)) == pytest.approx(3.7)
    assert cache_bytes_per_cycle(Reading("cache", {"blocks": 1}, microseconds(CACHE_BYTES))) == 1


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_every_measurement_runs(
    device: CusimDevice, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.tuning.micro.CACHE_BYTES", 1 << 16)
    monkeypatch.setattr("kernels.tuning.micro.TURNS", (0, 2, 4))
    monkeypatch.setattr("kernels.tuning.micro.ISSUE_TURNS", 2)
    monkeypatch.setattr("kernels.tuning.micro.LENGTH", 64)
    free = device.memory().free
    with laboratory(device, Effort(copies=2, replays=2)) as at:
        found = MEASUREMENTS[name](at)
    assert found
    assert {each.name for each in found} == {name}
    assert all(each.us > 0 for each in found)
    assert len({str(each.conditions) for each in found}) == len(found)
    assert device.memory().free == free


def test_a_reading_of_other_conditions_is_not_taken() -> None:
    made = readings(MEASURED)
    other = [
        replace(each, us=1e6) if each.conditions.get("trigger") == "END" else each for each in made
    ]
    assert fitted(other) == fitted(made)
