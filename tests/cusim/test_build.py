"""A build is compiled once, and again if anything that it depends on changes."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cusim import build
from cusim.build import ASAN, PLAIN
from kernels.device.device import CompileError, Instantiation

KERNEL = Instantiation("one.cu", "one")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one kernel, one header and an empty cache."""
    monkeypatch.setattr(build, "CACHE", tmp_path / "cache")
    (tmp_path / "one.cu").write_text(
        '#include "value.cuh"\n__global__ void one(int* y) { *y = VALUE; }'
    )
    (tmp_path / "value.cuh").write_text("#define VALUE 1\n")
    return tmp_path


def test_a_kernel_is_compiled_once_for_each_build(root: Path) -> None:
    first = build.kernel(PLAIN, KERNEL, root)
    made = first.stat().st_mtime_ns
    assert build.kernel(PLAIN, KERNEL, root) == first
    assert first.stat().st_mtime_ns == made
    assert build.kernel(ASAN, KERNEL, root) != first


def test_a_changed_header_is_another_kernel(root: Path) -> None:
    first = build.kernel(PLAIN, KERNEL, root)
    (root / "value.cuh").write_text("#define VALUE 22\n")
    second = build.kernel(PLAIN, KERNEL, root)
    assert second != first
    assert second.read_bytes() != first.read_bytes()


def test_a_copy_of_the_sources_is_the_same_kernel_until_one_of_its_files_differs(
    root: Path, tmp_path: Path
) -> None:
    first = build.kernel(PLAIN, KERNEL, root)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in root.glob("*.cu*"):
        shutil.copy(file, copy)
    assert build.kernel(PLAIN, KERNEL, copy) == first
    (copy / "other.cuh").write_text("#define VALUE 22\n")
    assert build.kernel(PLAIN, KERNEL, copy) == first  # which does not include it
    (copy / "value.cuh").write_text("#define VALUE 22\n")
    second = build.kernel(PLAIN, KERNEL, copy)
    assert second.read_bytes() != first.read_bytes()


def test_a_header_of_the_copy_is_found_from_a_source_in_another_folder(root: Path) -> None:
    """As copy.cu, which is beside the kernels, includes their headers."""
    (root / "beside").mkdir()
    (root / "one.cu").rename(root / "beside" / "one.cu")
    kernel = Instantiation("beside/one.cu", "one")
    first = build.kernel(PLAIN, kernel, root)
    (root / "value.cuh").write_text("#define VALUE 22\n")
    assert build.kernel(PLAIN, kernel, root).read_bytes() != first.read_bytes()


def test_builders_at_the_same_time_get_one_whole_library(root: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: build.kernel(PLAIN, KERNEL, root), range(8)))
    (path,) = paths
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert list(path.parent.glob("*one*")) == [path]  # and no rubbish


def test_what_does_not_compile_leaves_nothing_behind(root: Path) -> None:
    (root / "value.cuh").write_text("#define VALUE nonsense\n")
    with pytest.raises(CompileError, match="nonsense"):
        build.kernel(PLAIN, KERNEL, root)
    assert not list(build.CACHE.glob("*one*"))


def test_a_missing_source_is_named(root: Path) -> None:
    with pytest.raises(CompileError, match=r"source file .*two\.cu does not exist"):
        build.kernel(PLAIN, Instantiation("two.cu", "two"), root)
