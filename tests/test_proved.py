"""The tests that `make test` skips depend only on the digest's inputs, and it runs a sample of
them."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support import ROOT, proved
from tests.support.proved import PROOFS, Choice, Proof

KERNELS, NETWORKS, FIGURES, PAPERS, BATCHING, IMAGES, APPLICATION = PROOFS
CASES = ROOT / "tests/kernels/whole/test_kernels.py"
SMALL = CASES.with_name("test_bounds.py")


def _items(file: Path, *tests: tuple[str, int]) -> list[pytest.Item]:
    """Return stand-ins for this many cases of each test."""
    return [
        cast(pytest.Item, SimpleNamespace(path=file, name=f"{name}[{i}]"))
        for name, cases in tests
        for i in range(cases)
    ]


@pytest.mark.parametrize("tests", [96, 3])
def test_one_test_in_64_is_left_and_over_runs_each_is(tests: int) -> None:
    items = _items(SMALL, ("of_many", tests - 1), ("of_one", 1))
    chosen, kept, ran = 0, 0, set()
    for run in range(1200):
        spared = set(map(id, KERNELS.spared(items, f"run {run}")))
        assert spared == set(map(id, KERNELS.spared(items, f"run {run}")))  # as in another worker
        left = [index for index, item in enumerate(items) if id(item) not in spared]
        assert {after - before for before, after in pairwise(left)} <= {8}
        assert not left or KERNELS.kept(SMALL, f"run {run}"), "it would not be collected"
        chosen += bool(left)
        kept += len(left)
        ran |= set(left)
    assert ran == set(range(tests))
    assert 0.6 * tests < kept * 64 / 1200 < 1.4 * tests
    assert chosen <= 1200 / 8 * 1.3


def test_tests_of_a_large_file_are_made_of_one_case_in_64_and_over_runs_of_each() -> None:
    cases, kept, ran = range(300), 0, set[int]()
    for run in range(1200):
        choice = Choice(["kernels"], f"run {run}")
        taken = choice.of_cases(CASES, cases, _kernel)
        assert taken == Choice(["kernels"], f"run {run}").of_cases(CASES, cases, _kernel)
        assert choice.left == {"cases of tests/kernels": 300 - len(taken)}
        assert not choice.leaves(CASES)
        kept += len(taken)
        ran |= set(taken)
    assert ran == set(cases)
    assert 0.9 * 300 < kept * 64 / 1200 < 1.1 * 300
    assert Choice(["networks"], "a run").of_cases(CASES, cases, _kernel) == cases
    assert not KERNELS.spared(_items(CASES, ("of_those", 5)), "a run")  # not once more


def _kernel(case: int) -> int:
    """Return the kernel of a case: 50 of 300 have 5 cases each, and another has the rest."""
    return case % 60 if case % 60 < 50 else 50


def test_cases_that_share_a_kernel_run_together_but_four_at_most() -> None:
    for run in range(200):
        taken = Choice(["kernels"], f"run {run}").of_cases(CASES, range(300), _kernel)
        groups = Counter(map(_kernel, taken))
        assert 1 <= len(groups) <= 2  # of 113
        assert set(groups.values()) <= {1, 2, 4}


def test_neighbours_among_the_files_of_a_proof_have_their_turns_apart() -> None:
    files = sorted((ROOT / "tests/kernels/convolution").glob("test_*.py"))
    turning = [
        file
        for file in files
        if KERNELS.proves(file) and file.relative_to(ROOT).as_posix() not in KERNELS.long
    ]
    seen = Counter[Path]()
    for run in range(400):
        chosen = [file for file in turning if KERNELS.kept(file, f"run {run}")]
        assert 1 <= len(chosen) <= 2  # of 11
        seen.update(chosen)
    assert set(seen) == set(turning)
    assert all(25 < times < 80 for times in seen.values())  # one run in 8


def test_every_run_includes_tests_of_a_long_file() -> None:
    for file in KERNELS.long:
        kept = [KERNELS.kept(ROOT / file, f"run {run}") for run in range(200)]
        assert {each.step for each in kept} == {64}
        assert len({each.start for each in kept}) > 50


@pytest.mark.parametrize(
    ("proof", "file"),
    [
        (KERNELS, "tests/service/api/test_app.py"),
        (KERNELS, "tests/models/test_plan.py"),
        (KERNELS, "tests/kernels/convolution/test_algorithms_toy.py"),
        (KERNELS, "tests/kernels/test_reference.py"),
        (NETWORKS, "tests/service/api/test_app.py"),
        (NETWORKS, "tests/kernels/whole/test_kernels.py"),
        (FIGURES, "tests/benchmarks/peers/test_catalogue.py"),
        (PAPERS, "tests/benchmarks/papers/test_errors_page.py"),
        (BATCHING, "tests/service/batching/test_policy_urgency.py"),
        (IMAGES, "tests/service/images/test_file.py"),
        (IMAGES, "tests/service/images/test_decode_time.py"),
        (APPLICATION, "tests/service/cli/test_cli_process.py"),
        (APPLICATION, "tests/service/images/test_file.py"),
    ],
)
def test_tests_that_read_what_the_digest_is_not_of_all_run(proof: Proof, file: str) -> None:
    assert (ROOT / file).exists()
    assert not proof.spared(_items(ROOT / file, ("of_many", 33)), "a run")


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.name)
def test_nothing_else_that_the_digest_is_of_reads_more(proof: Proof) -> None:
    """A test file that does this always runs entirely; a source that did would invalidate the
    digest."""
    sources = [file for file in proof.files() if file.suffix == ".py"]
    assert len(sources) > 150
    more = {file for file in sources if proof.reads_more(file)}
    assert {file for file in more if not file.name.startswith("test_")} == set()


@pytest.mark.parametrize(
    ("line", "reads_more"),
    [
        ("from tests.support import PATIENCE_S", False),
        ("from tests.support import tolerance", False),
        ("from tests.support import ROOT, networks", True),
        ("from tests.support.networks import SHARED", True),
        ("import service.settings", True),
        ("from service.images import decode", True),
    ],
)
def test_a_name_of_a_package_is_its_own_or_a_modules(
    line: str, reads_more: bool, tmp_path: Path
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(f"{line}\n", encoding="utf-8")
    assert KERNELS.reads_more(file) is reads_more


def test_any_change_of_a_source_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "kernels" / "a.cu"
    source.parent.mkdir()
    source.write_text("one")
    monkeypatch.setattr(proved, "ROOT", tmp_path)
    monkeypatch.setattr(proved, "PROVED", tmp_path / "proved.txt")
    proof = Proof("kernels", ("tests",), ("kernels",), ("numpy",))
    assert not proof.holds()
    proved.PROVED.write_text(f"networks {proof.digest()}\nkernels 0\n")
    assert not proof.holds()
    proved.PROVED.write_text(f"networks 0\nkernels {proof.digest()}\n")
    assert proof.holds()
    source.write_text("two")
    assert not proof.holds()
    source.write_text("one")
    assert proof.holds()
    source.rename(source.with_name("b.cu"))
    assert not proof.holds()


def test_the_proofs_that_are_named_are_written_and_the_others_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proved, "PROVED", tmp_path / "proved.txt")
    proved.write(["images", "kernels"])
    assert [proof.name for proof in PROOFS if proof.holds()] == ["kernels", "images"]
    text = proved.PROVED.read_text(encoding="utf-8")
    monkeypatch.setattr(proved, "version", lambda library: f"another {library}")
    proved.write(["images"])
    assert [proof.name for proof in PROOFS if proof.holds()] == ["images"]
    first, _ = proved.PROVED.read_text(encoding="utf-8").splitlines()
    assert first == text.splitlines()[0]


def test_another_version_of_a_library_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = NETWORKS.digest()
    monkeypatch.setattr(proved, "version", lambda library: f"another {library}")
    assert NETWORKS.digest() != before
