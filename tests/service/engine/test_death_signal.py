"""A forked process ends at once if its parent has ended before it."""

import os
import sys

import pytest

from service.engine.death_signal import end_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no other system has this signal")


@pytest.mark.parametrize(("too_late", "status"), [(False, 3), (True, 0)])
def test_a_process_whose_parent_has_ended_ends(too_late: bool, status: int) -> None:
    parent = os.getpid()
    if (process := os.fork()) == 0:
        end_with(parent - 1 if too_late else parent)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == status
