"""Command lines of `convoy loadtest` that end before anything is measured."""

import sys
from pathlib import Path

import pytest

from tests.support.command_line import Run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ftp://x"], "ftp://x is no address of a server; write http://127.0.0.1:8000"),
        (["127.0.0.1:8000"], "is no address"),
        (["http://"], "is no address"),
        (["http://x:port"], "is no address"),
        (["http://x/?a=b"], "is no address"),
        (["http://x", "--p99", "soon"], "--p99: soon is not allowed; write a time, as 50ms"),
        (["http://x", "--duration", "0s"], "--duration: 0s is not allowed; it must be longer"),
        (["http://x", "--duration", "-1s"], "--duration: -1s is not allowed"),
        (["http://x", "--rate", "0"], "--rate"),
        (["http://x", "--clients", "0"], "--clients"),
        (["http://x", "--rate", "5", "--clients", "5"], "--clients cannot be given with --rate"),
        (["http://x", "--find-rate"], "--find-rate needs a bound, as --p99 50ms"),
        (["http://x", "--find-rate", "--p99", "1s", "--rate", "1", "--rate", "2"], "one --rate"),
        (["http://x", "--header", "nonsense"], "write 'Name: value'"),
        (["http://x", "--header", "A: b\r\nC: d"], "write 'Name: value'"),
        (["http://x", "--header", "A b: c"], "write 'Name: value'"),
    ],
)
def test_what_makes_no_sense_is_exit_status_2(
    loadtest: Run, arguments: list[str], says: str
) -> None:
    status, out, error = loadtest(*arguments)
    assert (status, out) == (2, "")
    assert says in error


def test_a_folder_without_pictures_is_one_clear_line(loadtest: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    status, _, error = loadtest("http://127.0.0.1:1", "--images", tmp_path / "empty")
    assert status == 1
    assert error.endswith("empty: no JPEG, PNG or WebP files are there\n")
    status, _, error = loadtest("http://127.0.0.1:1", "--images", tmp_path / "nowhere")
    assert status == 1
    assert error.endswith("nowhere: No such file or directory\n")


@pytest.mark.parametrize("package", ["aiohttp", "matplotlib"])
def test_what_is_not_installed_is_one_clear_line(
    loadtest: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    status, _, error = loadtest("http://127.0.0.1:1", "--plot", tmp_path / "it.png")
    assert status == 1
    assert f"Error: {package}: not installed" in error
    assert "'.[loadtest]'" in error
