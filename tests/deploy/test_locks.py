"""The image's locks: the requirements of pyproject.toml, in the versions of constraints.txt, with
hashes."""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.container_files import ROOT, pyproject

LOCKS = ROOT / "deploy" / "locks"
# A name for other packages, of which the extras want different versions.
UNCONSTRAINED = {"cuda-toolkit"}
_ENTRY = re.compile(r"(?P<name>\S+)==(?P<version>\S+)(?P<hashes>(?: +--hash=sha256:[0-9a-f]{64})+)")
_IMAGE = {"python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux"}

NAMES = ["build", "cpu", "cuda12", "cuda13"]
every_lock = pytest.mark.parametrize("name", NAMES)


@cache
def entries(name: str) -> dict[str, str]:
    """Return the versions of a lock; AssertionError for a line that is not one version with
    hashes."""
    text = (LOCKS / f"{name}.txt").read_text()
    lines = re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "").splitlines()
    found: dict[str, str] = {}
    for line in lines:
        entry = _ENTRY.fullmatch(line)
        assert entry, line
        found[canonicalize_name(entry["name"])] = entry["version"]
    assert len(found) == len(lines)
    return found


def wanted(name: str) -> list[Requirement]:
    """Return pyproject.toml's requirements for this lock."""
    project = pyproject()["project"]
    if name == "build":
        extras = pyproject()["project"]["optional-dependencies"]
        texts = pyproject()["build-system"]["requires"] + extras["sbom"]
    else:
        extras = project["optional-dependencies"]
        texts = [
            *project["dependencies"],
            *extras["grpc"],
            *extras["otel"],
            *(extras[name] if name != "cpu" else []),
        ]
    return [Requirement(text) for text in texts]


def applies(requirement: Requirement, extras: set[str]) -> bool:
    """Return whether the image needs a requirement of a package that is installed with these
    extras."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**_IMAGE, "extra": e}) for e in {"", *extras})


def test_there_is_a_lock_for_every_extra_of_the_image() -> None:
    assert sorted(file.stem for file in LOCKS.iterdir()) == NAMES
    extras = pyproject()["project"]["optional-dependencies"]
    assert [extra for extra in sorted(extras) if extra.startswith("cuda")] == NAMES[2:]


@every_lock
def test_every_entry_is_one_version_with_hashes_from_anywhere(name: str) -> None:
    assert entries(name)
    text = (LOCKS / f"{name}.txt").read_text()
    assert not re.search(r"://|^ *-(?!-hash)", text, re.MULTILINE)  # no address, no option


@every_lock
def test_every_version_is_the_tested_one(name: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines)
    constraints: dict[str, str] = {canonicalize_name(name): version for name, version in pairs}
    locked = entries(name)
    if name != "build":  # the build's tools are in no environment but the image's
        assert set(locked) - set(constraints) <= UNCONSTRAINED
    assert {p: v for p, v in locked.items() if constraints.get(p, v) != v} == {}


@every_lock
def test_a_lock_has_all_that_is_needed_and_nothing_else(name: str) -> None:
    locked = entries(name)
    needed: set[tuple[str, frozenset[str]]] = set()
    unknown: set[str] = set()
    to_follow: list[tuple[Requirement, set[str]]] = [(each, set()) for each in wanted(name)]
    while to_follow:
        requirement, of_extras = to_follow.pop()
        package, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if not applies(requirement, of_extras) or (package, extras) in needed:
            continue
        needed.add((package, extras))
        assert package in locked, requirement
        assert requirement.specifier.contains(locked[package]), requirement
        parts = parts_of(package, locked[package])
        if parts is None:
            unknown.add(package)
        else:
            to_follow += ((part, requirement.extras) for part in parts)
    superfluous = set(locked) - {package for package, _ in needed}
    assert not superfluous or unknown, superfluous
    assert name != "cpu" or not unknown, "not as `make lock` left it: install the tested versions"


def parts_of(package: str, version: str) -> list[Requirement] | None:
    """Return the requirements of this version; None if another version or none is installed
    here."""
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        return None
    if installed.version != version:
        return None
    return [Requirement(text) for text in installed.requires or []]
