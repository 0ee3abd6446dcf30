"""Draws progress bars on standard error for long tasks."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

# A server shows no progress bars, and their modules take 0.1 s to import, so the functions import
# them.
if TYPE_CHECKING:
    from rich.progress import ProgressColumn

T = TypeVar("T")

Show = Callable[[str, int, int], None]
"""Called with the name of the current task, the amount that is done, and the total amount."""


@contextmanager
def progress(*columns: "ProgressColumn") -> Iterator[Show]:
    """Within the `with` block, draw a progress bar on standard error. Yield the function that
    updates the bar. The bar appears with the first update, so it does not mix with an earlier error
    message."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with ExitStack() as shown:
        bar = Progress(*columns, console=Console(stderr=True))
        task = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            if not bar.live.is_started:
                shown.enter_context(bar)
            bar.update(task, description=what, completed=done, total=total)

        yield show


def download_progress() -> AbstractContextManager[Show]:
    """Draw a progress bar for downloads that shows bytes and bytes per second."""
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn  # noqa: PLC0415

    return progress(*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())


def compiling_kernels(kernels: Iterable[T]) -> Iterable[T]:
    """Yield the kernels one by one, and draw a progress bar with the number of compiled kernels."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import track  # noqa: PLC0415

    return track(kernels, description="compiling kernels", console=Console(stderr=True))
