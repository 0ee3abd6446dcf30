"""Regions of shared memory: bounds at registration and at each use."""

import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.errors import (
    BadRequestError,
    ModelNotFoundError,
    NoProcessError,
    PayloadTooLargeError,
)
from service.hosting.regions import RegionPart, Regions
from tests.support.service.shared_memory import FOLDER, shared_memory

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="there is no /dev/shm here")


@pytest.fixture
def file() -> Iterator[Path]:
    """Yield a file of shared memory of 100 bytes, from 0 to 99."""
    with shared_memory(bytes(range(100))) as path:
        yield path


@pytest.fixture
def regions(file: Path) -> Regions:
    """Return regions, of which `r` is the file's bytes from 10 to 59."""
    made = Regions(max_bytes=40)
    made.register("r", f"/{file.name}", 10, 50)
    return made


def test_a_region_is_listed_until_it_is_forgotten(regions: Regions, file: Path) -> None:
    status = {"name": "r", "key": f"/{file.name}", "offset": 10, "byte_size": 50}
    assert regions.status() == regions.status("r") == [status]
    regions.register("s", file.name, 0, 100)  # without the slash, as Python's own module has it
    regions.unregister("r")
    assert [each["name"] for each in regions.status()] == ["s"]
    with pytest.raises(ModelNotFoundError, match="Unable to find shared memory region: 'r'"):
        regions.status("r")
    regions.unregister("r")
    regions.unregister()
    assert regions.status() == []


def test_part_of_a_region_is_read_and_written(regions: Regions, file: Path) -> None:
    part = regions.part("r", 5, 10)
    assert part.read() == bytes(range(15, 25))
    part.write(b"seven")
    assert file.read_bytes() == bytes(range(15)) + b"seven" + bytes(range(20, 100))
    with pytest.raises(BadRequestError, match="at least 11 bytes; got 10"):
        part.write(bytes(11))


@pytest.mark.parametrize(("offset", "byte_size"), [(0, 101), (100, 1), (2**62, 1), (1, 2**62)])
def test_a_region_beyond_its_file_is_refused(file: Path, offset: int, byte_size: int) -> None:
    with pytest.raises(BadRequestError, match=r"ends at byte .* has 100"):
        Regions(40).register("r", file.name, offset, byte_size)


@pytest.mark.parametrize(("offset", "byte_size"), [(0, 0), (-1, 5), (0, -5), (2**63, 1)])
def test_a_region_of_nothing_is_refused(file: Path, offset: int, byte_size: int) -> None:
    with pytest.raises(BadRequestError, match="must have 1 to"):
        Regions(40).register("r", file.name, offset, byte_size)


@pytest.mark.parametrize("offset", [11, 2**62])
def test_a_place_beyond_its_region_is_refused(regions: Regions, offset: int) -> None:
    with pytest.raises(BadRequestError, match="Invalid offset"):
        regions.part("r", offset, 40)  # which the file has
    with pytest.raises(BadRequestError, match="Unable to find shared memory region: 's'"):
        regions.part("s", 0, 1)


def test_a_tensor_is_bounded_as_a_body_is(regions: Regions) -> None:
    with pytest.raises(PayloadTooLargeError, match="at most 40 bytes"):
        regions.part("r", 0, 41)


@pytest.mark.parametrize(
    "key", ["", "/", "..", "/..", ".", "/a/b", "../etc/passwd", "//a", "a\0b", "x" * 256]
)
def test_a_key_is_one_name(key: str) -> None:
    with pytest.raises(BadRequestError, match="shared memory with one slash"):
        Regions(40).register("r", key, 0, 1)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257])
def test_a_name_is_short_and_printable(file: Path, name: str) -> None:
    with pytest.raises(BadRequestError, match="1 to 256 characters"):
        Regions(40).register(name, file.name, 0, 1)


def test_a_name_is_taken_once_and_regions_are_few(
    regions: Regions, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadRequestError, match="'r' already in manager"):
        regions.register("r", file.name, 0, 1)
    monkeypatch.setattr("service.hosting.regions.MOST_REGIONS", 1)
    with pytest.raises(BadRequestError, match="1 regions are registered"):
        regions.register("s", file.name, 0, 1)


def test_links_pipes_and_folders_are_no_shared_memory(file: Path) -> None:
    odd = file.with_name(file.name + "-odd")
    regions = Regions(40)
    kinds = partial(odd.symlink_to, file), partial(os.mkfifo, odd), odd.mkdir
    for make in kinds:
        make()
        try:
            with pytest.raises(BadRequestError, match="Unable to open shared memory region"):
                regions.register("r", odd.name, 0, 1)
        finally:
            if odd.is_dir() and not odd.is_symlink():
                odd.rmdir()
            else:
                odd.unlink()
    with pytest.raises(BadRequestError, match="No such file"):
        regions.register("r", odd.name, 0, 1)


def test_without_a_descriptor_the_client_may_try_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    regions = Regions(40)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(NoProcessError, match=r"Too many open files.*; try again in a second"):
            regions.register("r", file.name, 0, 1)
    regions.register("r", file.name, 0, 1)


def test_a_file_that_is_shortened_later_is_an_error_and_not_the_end(
    regions: Regions, file: Path
) -> None:
    part = regions.part("r", 0, 40)
    os.truncate(file, 20)
    for use in (part.read, lambda: part.write(b"x")):
        with pytest.raises(BadRequestError, match="shorter than registered"):
            use()
    assert file.stat().st_size == 20


def test_a_file_that_is_shortened_just_then_is_an_error_too(
    regions: Regions, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = regions.part("r", 0, 40)
    monkeypatch.setattr(RegionPart, "_check", lambda _: os.truncate(file, 20))
    with pytest.raises(BadRequestError, match="shorter than registered"):
        part.read()


def test_a_region_without_memory_is_its_clients_error(
    regions: Regions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a sparse file is requested when it is first used, and may have run out."""

    def full(*_: Any) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    part = regions.part("r", 0, 40)
    monkeypatch.setattr(os, "pwrite", lambda *_: 1)
    with pytest.raises(BadRequestError, match="'r' cannot be written: No space left on device"):
        part.write(b"two")
    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "pread", full)
    with pytest.raises(BadRequestError, match=r"cannot be written: No space .* free space in"):
        part.write(b"two")
    with pytest.raises(BadRequestError, match="'r' cannot be read: No space left on device"):
        part.read()


def test_a_client_that_leases_its_file_does_not_hold_the_server_up(file: Path) -> None:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # which says that the lease ends
    leased = os.open(file, os.O_RDWR)
    try:
        fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        started = time.monotonic()
        with pytest.raises(BadRequestError, match="Unable to open shared memory region"):
            Regions(40).register("r", file.name, 0, 1)
        assert time.monotonic() - started < 40  # the kernel ends a lease after 45 s
    finally:
        os.close(leased)
        signal.signal(signal.SIGIO, before)


def test_an_unlinked_region_survives_until_it_is_forgotten(regions: Regions, file: Path) -> None:
    shared = file.stat()  # others, that earlier tests left to the collector, had the same name

    def files() -> int:
        opened = (Path("/proc/self/fd") / each for each in os.listdir("/proc/self/fd"))
        return sum(each.exists() and os.path.samestat(each.stat(), shared) for each in opened)

    file.unlink()
    part = regions.part("r", 0, 3)
    regions.unregister()
    assert part.read() == bytes([10, 11, 12])  # a request that is under way has it
    assert files() == 1
    del part
    assert files() == 0
