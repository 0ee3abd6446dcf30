"""Lists the releases of NVRTC, NVIDIA's run-time compiler, that Convoy supports.

For each release, tests/kernels/resources has a table of the registers and the memory that each
kernel needs. The extras in pyproject.toml allow these releases and no newer release. If another
version of NVRTC is loaded, a warning names that version.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compiler:
    """Names a release of NVRTC, and the package that contains it."""

    package: str
    release: str

    @property
    def version(self) -> tuple[int, int]:
        """Return the major and the minor version. NVRTC does not report the release's third
        number."""
        major, minor, _ = map(int, self.release.split("."))
        return major, minor

    @property
    def name(self) -> str:
        """Return the compiler's name, such as "NVRTC 13.0"."""
        return name_of(self.version)


COMPARED = (
    Compiler("nvidia-cuda-nvrtc-cu12", "12.8.93"),
    Compiler("nvidia-cuda-nvrtc-cu12", "12.9.86"),
    Compiler("nvidia-cuda-nvrtc", "13.0.88"),
    Compiler("nvidia-cuda-nvrtc", "13.1.115"),
    Compiler("nvidia-cuda-nvrtc", "13.2.86"),
    Compiler("nvidia-cuda-nvrtc", "13.3.33"),
    Compiler("nvidia-cuda-nvrtc", "13.4.92"),
    Compiler("nvidia-cuda-nvrtc", "13.5.37"),
)
"""The compilers in the order of their versions. Besides the pinned releases (constraints.txt) the
list has all releases between them, because PyTorch's wheels contain those. 12.8 is the first
release that supports sm_100 and sm_120."""


def name_of(version: tuple[int, int]) -> str:
    """Return the name of a version of NVRTC, such as "NVRTC 13.0"."""
    return "NVRTC {}.{}".format(*version)


def doubt(version: tuple[int, int]) -> str | None:
    """Return a warning if this version of NVRTC is not in COMPARED, the list of supported releases.
    Otherwise return None."""
    versions = [compiler.version for compiler in COMPARED]
    if version in versions:
        return None
    first, last = ("{}.{}".format(*each) for each in (min(versions), max(versions)))
    return (
        f"{name_of(version)} compiles the kernels, but they were tested only with NVRTC {first} to"
        f" {last}; they may be slower, or may not compile"
    )
