"""The file of measurements: its content, its permissions, and the errors for invalid files."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.device.device import Trigger
from kernels.tuning.store import (
    Conditions,
    Key,
    Measurements,
    Outcome,
    Times,
    TuningStore,
    TuningStoreError,
    merged,
)
from kernels.tuning.timing import Timing

HERE = Conditions("NVIDIA H200", "90a", "CUDA 13.0", "NVRTC 13.0")
KEY = Key(HERE, "fp32", "0123", "N1 C64 56x56 K64 3x3")
SCREENED = Outcome(screened_us=20.0)
TIMED = Outcome(20.0, Times(Timing(9.0, 10.0, 11.0), Timing(13.0, 14.0, 15.0)))
FAILED = Outcome(failure="wrong")
OUTCOMES = {"a": SCREENED, "b": TIMED, "c": FAILED}

_us = st.integers(0, 10**9).map(lambda nanoseconds: nanoseconds / 1000)
_timings = st.builds(Timing, _us, _us, _us)
_times = st.builds(Times, _timings, _timings)
_outcomes = st.builds(
    Outcome,
    st.none() | _us,
    st.none() | _times,
    st.none() | st.text(),
    st.none() | st.sampled_from(Trigger),
)
_keys = st.builds(Key, st.builds(Conditions, *[st.text()] * 4), *[st.text()] * 3)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(_keys, st.dictionaries(st.text(), _outcomes), max_size=4))
def test_what_is_added_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, measurements: Measurements
) -> None:
    store = TuningStore(tmp_path_factory.mktemp("store") / "new" / "tuning.json")
    assert store.read() == {}
    for key, outcomes in measurements.items():
        store.add(key, outcomes)
    assert TuningStore(store.path).read() == measurements


def test_a_candidate_is_compared_by_the_mean_of_its_medians() -> None:
    assert TIMED.times is not None
    assert TIMED.times.us == 12.0


def test_of_two_outcomes_the_later_counts_unless_it_knows_less() -> None:
    for known in OUTCOMES.values():
        assert merged({"a": known}, {"a": TIMED}) == {"a": TIMED}
        assert merged({"a": known}, {"a": FAILED}) == {"a": FAILED}
        assert merged({"a": known}, {"a": Outcome(21.0)}) == {"a": known}
    assert merged({"a": TIMED}, {"b": FAILED}) == {"a": TIMED, "b": FAILED}


def test_what_is_measured_anew_takes_the_place_of_what_was_known(tmp_path: Path) -> None:
    store = TuningStore(tmp_path / "tuning.json")
    other = Key(HERE, "fp32", "0123", "N2 C64 56x56 K64 3x3")
    for key in (KEY, other):
        store.add(key, OUTCOMES)
    store.add(KEY, {"b": SCREENED})
    assert store.read()[KEY] == OUTCOMES
    store.add(KEY, {"a": TIMED}, anew=True)
    assert store.read() == {KEY: {"a": TIMED}, other: OUTCOMES}


def test_a_candidate_has_a_line_of_its_own(tmp_path: Path) -> None:
    store = TuningStore(tmp_path / "tuning.json")
    store.add(KEY, OUTCOMES)
    lines = store.path.read_text().splitlines()
    assert len(lines) == 2 + len(OUTCOMES)
    assert '"b": {"screened_us": 20.0, "warm_us": [9.0, 10.0, 11.0]' in lines[3]


_ROW = {"device": "a", "architecture": "b", "driver": "c", "compiler": "d", "precision": "fp32"}
_ROW |= {"sources": "e", "problem": "f"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "3",
        '{"schema": 1}',
        '{"measurements": []}',
        '{"schema": 1, "measurements": 3}',
        '{"schema": 1, "measurements": [3]}',
        *(
            json.dumps({"schema": 1, "measurements": [row]})
            for row in (
                {},
                _ROW,
                {**_ROW, "candidates": []},
                {**_ROW, "candidates": {"a": 3}},
                {**_ROW, "candidates": {"a": {"warm_us": [1, 2], "cold_us": [1, 2]}}},
                {**_ROW, "candidates": {"a": {"warm_us": [1, 2, 3]}}},
                {**_ROW, "candidates": {"a": {"screened_us": "fast"}}},
                {**_ROW, "candidates": {"a": {"failure": 3}}},
                {**_ROW, "candidates": {"a": {"luck": 3}}},
                {**_ROW, "candidates": {}, "luck": "3"},
                {**_ROW, "candidates": {}, "problem": 3},
                {**_ROW, "candidates": {}, "driver": 3},
            )
        ),
        b"\xff\xfe",
        "[" * 200_000,
    ],
)
def test_a_file_that_holds_something_else_is_named_and_left_as_it_is(
    tmp_path: Path, content: str | bytes
) -> None:
    path = tmp_path / "tuning.json"
    before = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(before)
    store = TuningStore(path)
    for use in (store.read, lambda: store.add(KEY, OUTCOMES)):
        with pytest.raises(TuningStoreError, match=r"holds no measurements .*--tuning") as caught:
            use()
        assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_a_later_schema_is_told_from_nonsense(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    path.write_text('{"schema": 2, "rows": []}')
    with pytest.raises(TuningStoreError, match=r"measurements of schema 2, .* reads schema 1"):
        TuningStore(path).read()


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TuningStoreError, match=f"cannot read {tmp_path}: "):
        TuningStore(tmp_path).read()
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "tuning.json"  # a file where a folder must be
    with pytest.raises(TuningStoreError, match=f"cannot write {path}: "):
        TuningStore(path).add(KEY, OUTCOMES)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "tuning.json")
    TuningStore(tmp_path / "link.json").add(KEY, OUTCOMES)
    assert (tmp_path / "link.json").is_symlink()
    assert TuningStore(tmp_path / "tuning.json").read() == {KEY: OUTCOMES}


_WRITER = """
import sys
from pathlib import Path
from tests.kernels.tuning.test_store import HERE, Key, Outcome, TuningStore
store, who = TuningStore(Path(sys.argv[1])), sys.argv[2]
for index in range(int(sys.argv[3])):
    # The same problem as the others: what they add to it must stay.
    key = Key(HERE, "fp32", "0123", f"problem {index % 7}")
    store.add(key, {f"{who} {index}": Outcome(float(index))})
    print(index, flush=True)
"""


def _writer(path: Path, who: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(path), who, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_write_at_once_lose_nothing_and_readers_never_see_half(
    tmp_path: Path,
) -> None:
    store = TuningStore(tmp_path / "tuning.json")
    count = 60
    writers = {who: _writer(store.path, who, count) for who in ("one", "another")}
    seen = 0
    while any(writer.poll() is None for writer in writers.values()):
        now = sum(map(len, store.read().values()))
        assert now >= seen
        seen = now
    for writer in writers.values():
        writer.communicate()
        assert writer.returncode == 0
    names = {name for outcomes in store.read().values() for name in outcomes}
    assert names == {f"{who} {index}" for who in writers for index in range(count)}


def test_who_is_killed_has_lost_at_most_what_was_being_added(tmp_path: Path) -> None:
    store = TuningStore(tmp_path / "tuning.json")
    added = 0
    for who, lines in enumerate((1, 8, 3, 5)):
        writer = _writer(store.path, str(who), 10_000)
        assert writer.stdout is not None
        for _ in range(lines):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        said = lines + len(writer.communicate()[0].splitlines())
        added += said
        written = sum(map(len, store.read().values()))
        assert added <= written <= added + 1
        added = written
    store.add(KEY, OUTCOMES)  # the lock of a killed process is free
    assert store.read()[KEY] == OUTCOMES
