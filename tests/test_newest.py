"""The installation and the report of `python -m tests.support.newest`."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tests.support import ROOT
from tests.support.newest import newer, pinned, unbounded


def test_only_upper_bounds_are_left_out() -> None:
    given = ["a>=1", "b[x]>=1,<2", "c==13.*; sys_platform == 'linux'", "d"]
    assert unbounded(given) == ["b[x]>=1", 'c; sys_platform == "linux"']


def test_uvicorns_bound_is_one_of_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {Requirement(each).name for each in unbounded(project["dependencies"])}
    assert names == {"uvicorn"}


def test_what_is_not_as_pinned_is_told() -> None:
    pins = pinned(Path(ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert "ml-dtypes" in pins, "names are compared as the index writes them"
    installed = {**pins, "uvicorn": "0.55.0", "brand-new": "1"}
    assert newer(pins, installed) == [f"uvicorn {pins['uvicorn']} -> 0.55.0"]
    assert newer(pins, pins) == []
