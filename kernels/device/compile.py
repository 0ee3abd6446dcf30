"""Compiles the CUDA C++ in kernels/src to cubins with NVRTC, and caches the cubins. All kernels are
compiled here.

    kernels/src/*.cu, *.cuh ─┐
    Instantiation            ├─ digest ─ cache hit ──────────────┐
    architecture, flags      │         └ miss ─ NVRTC ─ cache ───┴─ Cubin
    compiler's version ──────┘

Compiling needs no GPU and no driver. Therefore the build of a container image can fill the cache.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from kernels.device import nvrtc
from kernels.device.cache_folder import FOLDER, placed
from kernels.device.compilers import name_of
from kernels.device.device import SOURCE_ROOT, CompileError, Instantiation
from kernels.device.gpus import ARCHITECTURES

DEFAULT_CACHE = FOLDER / "cubins"

# Stated in full, though most are NVRTC's defaults: a new default must not change results.
FLAGS = (
    "--std=c++17",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--fmad=true",
    "--generate-line-info",  # line numbers for profilers; the code does not change
    "--ptxas-options=-v",  # registers, shared memory and spills in the log
    # NVRTC before 13.2 takes a generic lambda without it for a function of the host.
    "--device-as-default-execution-space",
)

_log = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def compiler() -> str:
    """Return the compiler's name and version, such as "NVRTC 13.0"."""
    return name_of(nvrtc.version())


def architectures() -> tuple[str, ...]:
    """Return the names of the architectures that both the compiler and the table of GPUs
    support."""
    known = nvrtc.architectures()
    return tuple(name for name in ARCHITECTURES if int(name.rstrip("a")) in known)


@dataclass(frozen=True, slots=True)
class Resources:
    """Holds the registers and the memory that a kernel uses on one architecture, as ptxas reports
    them. Memory is in bytes."""

    registers: int  # a thread
    static_shared: int  # a block
    stack: int  # a thread
    spill_stores: int  # a thread
    spill_loads: int  # a thread


@dataclass(frozen=True, slots=True)
class Cubin:
    """Holds one kernel as machine code for one architecture."""

    code: bytes
    name: str  # the mangled name of the kernel in `code`
    resources: Resources


def architecture(compute_capability: tuple[int, int]) -> str:
    """Return the architecture for which kernels are compiled on a GPU of this compute capability:
    "80", "120", or "90a" for Hopper."""
    major, minor = compute_capability
    return f"{major}{minor}a" if (major, minor) == (9, 0) else f"{major}{minor}"


def compile_kernel(
    instantiation: Instantiation,
    arch: str,
    cache: Path = DEFAULT_CACHE,
    root: Path = SOURCE_ROOT,
) -> Cubin:
    """Read the cubin of an instantiation for `arch` ("80", "90a") from the cache, or compile it.

    A damaged entry is compiled again. If the cache cannot be written, a warning is logged. Any
    number of threads and processes may share a cache. Raises CompileError, or CompilerNotFoundError
    if there is no compiler.
    """
    texts = _sources(root, instantiation.source)
    entry = cached_file(instantiation, arch, cache, root)
    cubin = _read(entry)
    if cubin is None:
        cubin = _compile(instantiation, arch, texts)
        _write(entry, cubin)
    return cubin


def cached_file(
    instantiation: Instantiation, arch: str, cache: Path = DEFAULT_CACHE, root: Path = SOURCE_ROOT
) -> Path:
    """Return the path of the file in which `compile_kernel` caches the cubin of an instantiation.
    Raises CompilerNotFoundError."""
    texts = _sources(root, instantiation.source)
    return placed(cache) / f"{_digest(instantiation, arch, texts)}.cubin"


def compile_all(
    instantiations: Iterable[Instantiation],
    architectures: Iterable[str],
    cache: Path = DEFAULT_CACHE,
    progress: Callable[[int, int], None] | None = None,
    threads: int = 0,
    root: Path = SOURCE_ROOT,
) -> dict[tuple[Instantiation, str], Cubin]:
    """Return the cubin of every instantiation for each of `architectures` that the instantiation
    supports.

    `threads` is the number of threads that compile, where 0 stands for one thread per core.
    `progress(done, total)` is called in the calling thread after each kernel. Raises the first
    CompileError at once. Kernels that were compiled before stay in the cache.
    """
    architectures = tuple(architectures)
    pairs = ((i, arch) for i in instantiations for arch in architectures)
    wanted = {(i, arch): None for i, arch in pairs if i.architectures.includes(arch)}
    cubins = {}

    def make(kernel: tuple[Instantiation, str]) -> Cubin:
        return compile_kernel(*kernel, cache, root)

    for done, (kernel, cubin) in enumerate(_in_threads(make, wanted, threads), start=1):
        cubins[kernel] = cubin
        if progress is not None:
            progress(done, len(wanted))
    return {kernel: cubins[kernel] for kernel in wanted}


def compile_each(
    make: Callable[[Instantiation], object], instantiations: Iterable[Instantiation], threads: int
) -> Iterator[Instantiation]:
    """Call `make` with every instantiation on `threads` threads (0: one per core). Yield each
    instantiation when its call has ended.

    A kernel that does not compile is yielded too. Loading this kernel later raises its
    CompileError. Any other error is raised at once.
    """

    def attempt(instantiation: Instantiation) -> None:
        with suppress(CompileError):
            make(instantiation)

    for instantiation, _ in _in_threads(attempt, instantiations, threads):
        yield instantiation


def _in_threads(
    make: Callable[[_Item], _Made], items: Iterable[_Item], threads: int
) -> Iterator[tuple[_Item, _Made]]:
    """Call `make` with every item in several threads. Yield each item with its result as soon as
    its call has ended. After an error, no further call begins."""
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        running = {pool.submit(make, item): item for item in items}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def source_digest(sources: Iterable[str], root: Path = SOURCE_ROOT) -> str:
    """Return a digest (a hash) of `sources`, of all files that they include, and of the compiler's
    flags."""
    texts = {source: _sources(root, source) for source in sources}
    return hashlib.sha256(json.dumps([FLAGS, texts], sort_keys=True).encode()).hexdigest()[:16]


def include_names(source: str, root: Path = SOURCE_ROOT) -> tuple[str, ...]:
    """Return the names of a source and of every file under `root` that it includes, at any
    depth.
    """
    return tuple(_sources(root, source))


# Sources

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def _sources(root: Path, source: str) -> dict[str, str]:
    """Return the texts of `source` and of every file under `root` that it includes, by name.

    The compiler gets these texts and searches no folder, so it compiles exactly the texts from
    which the cache key is computed. A missing include is no error here, because the compiler may
    skip the preprocessor branch that contains it.
    """
    texts = {source: (root / source).read_text(encoding="utf-8")}
    waiting = _INCLUDE.findall(texts[source])
    while waiting:
        name = waiting.pop()
        if name not in texts and (root / name).is_file():
            texts[name] = (root / name).read_text(encoding="utf-8")
            waiting += _INCLUDE.findall(texts[name])
    return texts


def _digest(instantiation: Instantiation, arch: str, texts: dict[str, str]) -> str:
    """Return the cache key of a cubin: a digest of the sources, the instantiation, the flags, the
    architecture and the compiler's version."""
    flags = (*FLAGS, *instantiation.macros)
    depends_on = [nvrtc.version(), arch, flags, instantiation.expression, texts]
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


# The compiler


def _compile(instantiation: Instantiation, arch: str, texts: dict[str, str]) -> Cubin:
    source, expression = instantiation.source, instantiation.expression
    headers = {name: text for name, text in texts.items() if name != source}
    options = (f"--gpu-architecture=sm_{arch}", *FLAGS, *instantiation.macros)
    try:
        compiled = nvrtc.compile_program(texts[source], source, expression, headers, options)
    except nvrtc.NvrtcError as error:
        raise CompileError(instantiation, str(error)) from error
    resources = _resources(compiled)
    if resources is None:
        raise CompileError(
            instantiation, f"the log does not list the kernel's resources\n{compiled.log}"
        )
    return Cubin(compiled.cubin, compiled.lowered_name, resources)


def _resources(compiled: nvrtc.CompilerOutput) -> Resources | None:
    """Return the resources that ptxas reports for the kernel, or None if the log has none."""
    _, _, report = compiled.log.partition(f"Compiling entry function '{compiled.lowered_name}'")
    frame = re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report
    )
    used = re.search(r"Used (\d+) registers(.*)", report)
    if frame is None or used is None:
        return None
    shared = re.search(r"(\d+) bytes smem", used[2])
    stack, stores, loads = map(int, frame.groups())
    return Resources(int(used[1]), int(shared[1]) if shared else 0, stack, stores, loads)


# The cache: a file is a line with the digest of the rest, a line of JSON, and the machine code.


def _read(entry: Path) -> Cubin | None:
    """Return the cached cubin, or None if it is missing or damaged."""
    try:
        content = entry.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("cannot read %s: %s", entry, error)
        return None
    digest, _, rest = content.partition(b"\n")
    if digest != hashlib.sha256(rest).hexdigest().encode():
        _log.warning("%s is damaged; its kernel is compiled again", entry)
        return None
    header, _, code = rest.partition(b"\n")
    fields = json.loads(header)
    return Cubin(code, fields["name"], Resources(**fields["resources"]))


def _write(entry: Path, cubin: Cubin) -> None:
    """Write a cubin to the cache atomically, so that other processes read a complete file or
    none."""
    fields = {"name": cubin.name, "resources": asdict(cubin.resources)}
    rest = json.dumps(fields).encode() + b"\n" + cubin.code
    temporary = entry.with_suffix(f".{uuid4().hex}.tmp")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
            temporary.replace(entry)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot keep compiled kernels in %s: %s", entry.parent, error)
