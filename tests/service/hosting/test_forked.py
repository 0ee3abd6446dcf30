"""A copy of the process creates objects and ends. The process notices every kind of end."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from models import ModelError, UnsupportedModelError
from service.hosting.forked import CAN_FORK, forked
from tests.support import PATIENCE_S, ROOT

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="only Linux's libraries can be copied")


def begin(
    make: Callable[[], Iterator[object]], bound_s: float = 0
) -> Generator[object, None, None]:
    return forked(make, lambda how: ModelError(f"the copy {how}"), bound_s)


def numbers() -> Iterator[object]:
    yield os.getpid()
    logging.getLogger("convoy").info("made by %s", "the copy")
    logging.getLogger("PIL").debug("nobody asked for this")
    yield np.arange(5)


def test_items_and_lines_of_the_log_come_as_they_are_made(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "convoy"), closing(begin(numbers)) as made:
        pid, array = made
    assert pid != os.getpid()
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [0, 1, 2, 3, 4]
    assert caplog.messages == ["made by the copy"]


def test_an_error_is_raised_here_and_says_where_it_was_raised_there() -> None:
    def refuse() -> Iterator[object]:
        yield 1
        raise UnsupportedModelError("no classifier")

    made = begin(refuse)
    assert next(made) == 1
    with pytest.raises(UnsupportedModelError, match="no classifier") as error:
        next(made)
    assert "in refuse" in error.value.__notes__[0]


@pytest.mark.parametrize(
    ("end", "bound_s", "how"),
    [
        (partial(os._exit, 3), PATIENCE_S, "ended with status 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), PATIENCE_S, "was ended by signal 9"),
        (partial(time.sleep, 10 * PATIENCE_S), 0.2, "was stuck for 0.2 s"),
    ],
)
def test_a_copy_that_ends_too_early_is_an_error(
    end: Callable[[], object], bound_s: float, how: str
) -> None:
    def fail() -> Iterator[object]:
        yield "first"
        end()
        yield "second"

    made = begin(fail, bound_s)
    assert next(made) == "first"
    with pytest.raises(ModelError, match=f"the copy {how}"):
        next(made)


def test_an_error_that_cannot_be_sent_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    class OddError(Exception):
        """A class that cannot be pickled, because it has no global name."""

    def fail() -> Iterator[object]:
        yield 1
        raise OddError

    made = begin(fail)
    assert next(made) == 1
    with pytest.raises(ModelError, match="the copy ended with status 0"):
        next(made)
    assert "OddError" in capfd.readouterr().err


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def endless() -> Iterator[object]:
    yield os.getpid()
    time.sleep(10 * PATIENCE_S)


def test_what_is_not_awaited_is_ended() -> None:
    made = begin(endless)
    pid = next(made)
    assert isinstance(pid, int)
    assert is_running(pid)
    made.close()
    assert not is_running(pid)


PARENT = """
import os, signal
from tests.service.hosting.test_forked import begin, endless
made = begin(endless)
print(next(made), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_with_its_parent_however_that_ends() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())  # not to the end, which the copy has open, too
        assert parent.wait() == -signal.SIGKILL
    deadline = time.monotonic() + PATIENCE_S
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
