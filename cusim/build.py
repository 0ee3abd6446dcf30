"""Compiles the simulator and the kernels with g++, and caches the results.

The name of a compiled file contains a digest of the sources with their includes, the flags, and the
compiler's version. The digest does not contain the folder of the sources, so copies of a source are
compiled once. Any number of processes may build at the same time.
"""

import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from kernels.device.device import SOURCE_ROOT, CompileError, Instantiation
from kernels.device.signature import check_template

THIS = Path(__file__)
HERE = THIS.parent
CACHE = HERE.parent / ".cache" / "cusim"
INCLUDE = HERE / "include"
ENTRY = HERE / "entry.cpp"
HEADER = "cusim.h"  # included before everything

Make = Callable[[Path], None]


class CompilerFailure(Exception):  # noqa: N818  (the code's failure, not this module's)
    """Raised when g++ fails. Contains g++'s messages."""


@dataclass(frozen=True, slots=True)
class Build:
    """Describes one set of compiler flags for the simulator and the kernels, for example with a
    sanitizer."""

    name: str
    macros: tuple[str, ...]  # tell the runtime which sanitizer there is
    kernel: tuple[str, ...]
    link: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


# Cheap enough to have always; the runtime brings what they call.
_CHECKED = ("-fsanitize=alignment,bounds", "-fno-sanitize-recover=all")

PLAIN = Build(
    "plain",
    macros=(),
    kernel=("-O1", *_CHECKED),
    link=(),
)
# For whole networks, which run two or three times as fast; to compile takes half as long again.
FAST = Build(
    "fast",
    macros=(),
    kernel=("-O3", *_CHECKED),
    link=(),
)
ASAN = Build(
    "asan",
    macros=("-DCUSIM_ASAN",),
    kernel=("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    link=("-fsanitize=address,undefined",),
    environment=(
        ("ASAN_OPTIONS", "detect_leaks=0:detect_odr_violation=0:abort_on_error=0"),
        ("UBSAN_OPTIONS", "print_stacktrace=0"),
    ),
)
TSAN = Build(
    "tsan",
    macros=("-DCUSIM_TSAN",),
    kernel=("-O2", *_CHECKED, "-fsanitize=thread"),
    link=("-fsanitize=thread",),
    environment=(("TSAN_OPTIONS", "halt_on_error=1:report_thread_leaks=0:history_size=2"),),
)
# The sanitizer's instrumentation without the sanitizer: the runtime has what it calls.
_INSTRUMENTED = (
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
)
ORDERED = Build(
    "ordered",
    macros=("-DCUSIM_ORDERED",),
    kernel=("-O2", *_CHECKED, *_INSTRUMENTED),
    link=(),
)
# Vectors stay whole, as one instruction moves them on a GPU.
PROFILE = Build(
    "profile",
    macros=("-DCUSIM_PROFILE",),
    kernel=(
        "-O2",
        "-fno-tree-sra",
        "-fno-ipa-sra",
        "-fno-tree-vectorize",
        "-fno-tree-slp-vectorize",
        *_INSTRUMENTED,
    ),
    link=(),
)
BUILDS = (PLAIN, ASAN, TSAN, ORDERED)

# Line numbers alone; addr2line gives those of DWARF 5 to the wrong file.
_COMMON = ("-g1", "-gdwarf-4", "-Wall", "-Wextra", "-fno-exceptions")
_KERNEL = (
    *_COMMON,
    "-std=gnu++20",  # gnu: a * b + c becomes one fused operation, as on the device
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-gnu-unique",  # or two kernels with one name would share their static shared memory
    "-fno-strict-aliasing",  # CUDA code reads vectors from arrays of scalars
    # What wgmma reads in registers is watched until it is waited for: no other variable may take
    # their place, nor may they lie in a function that has returned (__global__ is `flatten`).
    "-fstack-reuse=none",
    "-Wno-unknown-pragmas",
    "-Werror=return-type",
)
# No start files: they have static variables, and those are shared memory. No libraries either: the
# runtime, which has them, also stands in for the one that these checks would bring.
_KERNEL_LINK = ("-shared", "-nostartfiles", "-nodefaultlibs")
# Views and statements' frontiers are for a debugger, and take a third of its time.
_NO_VIEWS = ("-gno-variable-location-views", "-gno-statement-frontiers")
_RUNTIME = (*_COMMON, *_NO_VIEWS, "-std=c++20", "-O2", f"-I{INCLUDE}")


def runtime(build: Build) -> Path:
    """Compile the simulator's program if needed, and return its path."""
    sources = sorted((HERE / "runtime").glob("*.cpp"))
    files = [THIS, *sources, *(HERE / "runtime").glob("*.h"), *_headers()]
    flags = (*_RUNTIME, *processor(), *build.macros)

    def make(output: Path) -> None:
        # All of it at once, which spares reading the headers for each; and linked by itself, for
        # the sanitizers' flags would instrument what is compiled with them.
        whole = output.with_suffix(".o")
        try:
            _gpp(*flags, "-x", "c++", "-c", "-", "-o", whole, given=_included(sources))
            _gpp("-rdynamic", *build.link, whole, "-o", output)
        finally:
            whole.unlink(missing_ok=True)

    return _cached("cusim", _digest(flags, build.link, _texts(files)), "", make)


def _included(sources: Iterable[Path]) -> str:
    return "".join(f'#include "{source}"\n' for source in sources)


def kernel(build: Build, instantiation: Instantiation, root: Path) -> Path:
    """Compile one kernel if needed, and return the path of its library. `root` is the folder of the
    kernel's source. Raises CompileError."""
    source = root / instantiation.source
    if not source.is_file():
        raise CompileError(instantiation, f"the source file {source} does not exist")
    includes = [THIS, *_including(source, root), ENTRY, *_headers()]
    try:
        check_template(instantiation, source)
    except TypeError as error:
        raise CompileError(instantiation, str(error)) from error
    flags = (*_KERNEL, *processor(), *build.kernel)
    # Where the compiled header cannot be used, g++ goes on to that in the next folder.
    folders = (f"-I{_header(build).parent}", f"-I{INCLUDE}", f"-I{root}", f"-I{SOURCE_ROOT}")
    names = (f"-DCUSIM_KERNEL={instantiation.expression}", *instantiation.macros)
    given = (f'-DCUSIM_SOURCE="{source}"', *names)

    def make(output: Path) -> None:
        unlinked = output.with_suffix(".o")
        try:
            _gpp(*flags, *folders, "-include", HEADER, *given, "-c", ENTRY, "-o", unlinked)
            _gpp(*_KERNEL_LINK, unlinked, "-o", output)
        except CompilerFailure as failure:
            raise CompileError(instantiation, str(failure)) from None
        finally:
            unlinked.unlink(missing_ok=True)

    digest = _digest(flags, instantiation.source, names, _KERNEL_LINK, _texts(includes))
    return _cached(f"{instantiation.kernel}-{build.name}", digest, ".so", make)


def _header(build: Build) -> Path:
    """Precompile the header that every kernel includes. This saves a third of a small kernel's
    compile time."""
    flags = (*_KERNEL, *processor(), *build.kernel, f"-I{INCLUDE}")

    def make(output: Path) -> None:
        _gpp(*flags, "-x", "c++-header", INCLUDE / HEADER, "-o", output)

    digest = _digest(flags, _texts([THIS, *_headers()]))
    return _cached(f"header-{build.name}", digest, f"/{HEADER}.gch", make)


def _headers() -> list[Path]:
    return list(INCLUDE.rglob("*.h"))


@cache
def processor() -> tuple[str, ...]:
    """Return compiler flags for this processor. Without these flags a fused multiply-add is 30
    times slower."""
    cpuinfo = Path("/proc/cpuinfo")
    features = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return ("-march=x86-64-v3",) if {"avx2", "fma", "f16c", "bmi2"} <= features else ()


@cache
def _compiler_version() -> str:
    return _gpp("-v")


def _gpp(*arguments: str | Path, given: str = "") -> str:
    """Run g++ and return its messages. Raises CompilerFailure with these messages if g++ fails."""
    run = subprocess.run(
        ["g++", *arguments], input=given, capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        raise CompilerFailure(run.stderr)
    return run.stderr


_INCLUDE_LINE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def _including(source: Path, root: Path) -> list[Path]:
    """Return the source and every file that it includes by #include "…", at any depth. Like g++,
    search the folder of the including file first, then `root` and SOURCE_ROOT."""
    found: list[Path] = []
    waiting = [source]
    while waiting:
        path = waiting.pop().resolve()
        if path not in found:
            found.append(path)
            for name in _INCLUDE_LINE.findall(path.read_text(encoding="utf-8")):
                places = (folder / name for folder in (path.parent, root, SOURCE_ROOT))
                waiting += [place for place in places if place.exists()][:1]
    return found


def _texts(files: Iterable[Path]) -> list[str]:
    return sorted(_text(path, path.stat().st_mtime_ns) for path in files)


@lru_cache(maxsize=256)
def _text(path: Path, _modified: int) -> str:
    return f"{path.name}\n{path.read_text(encoding='utf-8')}"


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr((_compiler_version(), parts)).encode()).hexdigest()[:32]


def _cached(name: str, digest: str, suffix: str, make: Make) -> Path:
    path = CACHE / f"{name}-{digest}{suffix}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(CACHE / f"{digest[:2]}.lock"):
            if not path.exists():
                _make_whole(path, make)
    return path


def _make_whole(path: Path, make: Make) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    os.close(handle)
    try:
        make(Path(temporary))
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)  # whole, or not there
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock while this process builds a file. Other processes that need the file wait."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
