"""Each fault alone: every accepted request is answered once, and the server serves on."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.service.whole.faults.catalog import FAULTS, table
from tests.service.whole.faults.fault import ANY, Fault
from tests.service.whole.faults.rig import Rig, rigged
from tests.support import ROOT
from tests.support.servers.control import until


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One server for all faults that it has to survive."""
    with rigged(tmp_path_factory.mktemp("shared")) as rig:
        yield rig
        rig.process.terminate()
        assert rig.process.wait(30) == 0


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_harms_no_request_but_its_own(fault: Fault, shared: Rig, tmp_path: Path) -> None:
    with ExitStack() as stack:
        rig = stack.enter_context(rigged(tmp_path, *fault.options)) if fault.options else shared
        before = rig.counted()
        threads = rig.threads()
        expected = Counter(fault.inject(rig))
        if fault.ends:
            return
        until(lambda: rig.inside() == (0, 0))
        either = expected.pop(ANY, 0)
        until(lambda: (rig.counted() - before).total() == expected.total() + either)
        told = rig.counted() - before
        assert not expected - told, told
        assert either or told == expected
        rig.check_serves()
        until(lambda: rig.threads() <= threads + 1)
        assert rig.process.poll() is None
        assert "in ASGI application" not in rig.errors.read_text()


def test_the_table_of_faults_is_the_one_that_is_tested() -> None:
    assert (ROOT / "deploy" / "FAULTS.md").read_text() == table()


def test_there_are_many_faults() -> None:
    assert len(FAULTS) >= 40
