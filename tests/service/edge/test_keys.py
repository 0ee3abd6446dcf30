"""API keys from a file: accepted keys, refused files, and rotation."""

import logging
import time
from pathlib import Path

import pytest

from service.edge.keys import Keys
from service.fair_queue import Client, Right
from service.settings import SettingsError

# The rights of a key that names none.
NONE: frozenset[Right] = frozenset()


def keys_file(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    file = folder / "keys"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(mode)
    return file


def test_a_key_is_found_by_its_line_and_nothing_else_is(tmp_path: Path) -> None:
    keys = Keys(keys_file(tmp_path, "# of the phones\nfirst-key\n\n  second-key  \n"))
    assert keys.find(b"first-key") == Client("key 2", 1.0, 2, NONE)
    assert keys.find(b"second-key") == Client("key 4", 1.0, 2, NONE)
    for wrong in (
        b"",
        b"first-ke",
        b"first-key ",
        b"First-key",
        b"# of the phones",
        b"\xff\xfe",
        b"first-key\nsecond-key",
    ):
        assert keys.find(wrong) is None


def test_to_find_a_key_takes_as_long_among_thousands_as_alone(tmp_path: Path) -> None:
    """Every request pays for it, on the event loop, and so does every guess."""
    alone = Keys(keys_file(tmp_path, "key-0\n"))
    keys = Keys(keys_file(tmp_path, "".join(f"key-{n}\n" for n in range(10_000))))

    def took_s(among: Keys, presented: bytes) -> float:
        started = time.thread_time()
        for _ in range(100):
            among.find(presented)
        return time.thread_time() - started

    assert keys.find(b"key-9999") == Client("key 10000", 1.0, 2, NONE)
    for presented in (b"key-0", b"key-9999", b"wrong"):
        tries = [[took_s(each, presented) for each in (alone, keys)] for _ in range(20)]
        least_alone, least = map(min, zip(*tries, strict=True))
        assert least < 10 * least_alone  # 1000 times as long if each key is compared


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no key"),
        ("# nothing but this\n\n", "has no key"),
        ("good\ntwo words\n", "line 2"),
        ("schlüssel\n", "ASCII"),
        (b"\xff\xfe\n", "UTF-8"),
    ],
)
def test_a_file_that_makes_no_sense_is_one_clear_error(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    file = keys_file(tmp_path, text)
    with pytest.raises(SettingsError, match=problem) as error:
        Keys(file)
    assert str(file) in str(error.value)
    assert "two words" not in str(error.value)  # a key is not to be read in a log


def test_a_file_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        Keys(tmp_path / "none")


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o604, True), (0o640, False)])
def test_a_world_readable_file_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    Keys(keys_file(tmp_path, "key\n", mode))
    assert ("every user" in caplog.text) == warned


def test_keys_are_rotated_and_a_broken_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = keys_file(tmp_path, "old\n")
    keys = Keys(file)
    file.write_text("new\n")
    assert keys.find(b"old")
    keys.reload()
    assert keys.find(b"old") is None
    assert keys.find(b"new")
    file.write_text("")
    keys.reload()
    assert keys.find(b"new")
    assert "the current API keys stay in use" in caplog.text


def test_a_key_on_the_line_of_another_has_a_name_of_its_own(tmp_path: Path) -> None:
    """By the name, edge and queues count what a client has in progress and what it owes."""
    file = keys_file(tmp_path, "gone\nkept\nmoved\n")
    keys = Keys(file)
    file.write_text("new\nkept\n\nmoved\n")
    keys.reload()
    assert keys.find(b"new") == Client("key 1, reload 1", 1.0, 2, NONE)
    assert keys.find(b"kept") == Client("key 2", 1.0, 2, NONE)
    assert keys.find(b"moved") == Client("key 4, reload 1", 1.0, 2, NONE)
    file.write_text("new\nkept weight=2\n\nmoved\n")  # a queue keeps the weight with the name
    keys.reload()
    assert keys.find(b"new") == Client("key 1, reload 1", 1.0, 2, NONE)
    assert keys.find(b"kept") == Client("key 2, reload 2", 2.0, 2, NONE)
    assert keys.find(b"moved") == Client("key 4, reload 1", 1.0, 2, NONE)


def test_a_key_may_have_a_weight_and_a_priority(tmp_path: Path) -> None:
    file = keys_file(tmp_path, "one weight=4\ntwo   priority=1\tweight=0.5\nthree\n")
    keys = Keys(file)
    assert keys.find(b"one") == Client("key 1", 4.0, 2, NONE)
    assert keys.find(b"two") == Client("key 2", 0.5, 1, NONE)
    assert keys.find(b"three") == Client("key 3", 1.0, 2, NONE)
    assert keys.find(b"one weight=4") is None


def test_a_key_has_the_rights_that_are_named_after_it(tmp_path: Path) -> None:
    keys = Keys(keys_file(tmp_path, "one repository\ntwo shared-memory priority repository\n"))
    assert keys.find(b"one") == Client("key 1", 1.0, 2, frozenset({Right.REPOSITORY}))
    assert keys.find(b"two") == Client("key 2", 1.0, 1, frozenset(Right))


@pytest.mark.parametrize(
    "rights", ["weight=0", "weight=-1", "weight=x", "weight=", "priority=0", "priority=10", "more"]
)
def test_what_follows_a_key_is_one_of_these(tmp_path: Path, rights: str) -> None:
    with pytest.raises(SettingsError, match=r"line 2: a key may be followed by weight=N"):
        Keys(keys_file(tmp_path, f"one\ntwo {rights}\n"))
