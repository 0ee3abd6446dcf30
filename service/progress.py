"""Shows the progress of long work on standard error."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from rich.console import Console
from rich.progress import DownloadColumn, Progress, ProgressColumn, TransferSpeedColumn

Show = Callable[[str, int, int], None]
"""Called with the present task, how much of it is done, and how much there is in all."""


@contextmanager
def progress(*columns: ProgressColumn) -> Iterator[Show]:
    """Draw a bar on standard error from the first update on; an error before that has its own
    line."""
    with ExitStack() as shown:
        bar = Progress(*columns, console=Console(stderr=True))
        task = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            if not bar.live.is_started:
                shown.enter_context(bar)
            bar.update(task, description=what, completed=done, total=total)

        yield show


def download_progress() -> AbstractContextManager[Show]:
    """Draw a bar that shows bytes and their rate."""
    return progress(*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
