"""Each fault alone. Every accepted request is answered exactly once, and the server continues."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.service.whole.faults.catalogue import FAULTS, table
from tests.service.whole.faults.fault import ANY, Fault
from tests.service.whole.faults.rig import Rig, rigged
from tests.support import PATIENCE_S, ROOT
from tests.support.servers.control import until

_DECODES = "--decodes"  # the jobs that run images decode them


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Yield one server for all faults that a server must survive."""
    yield from _outliving(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def decoding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Yield one server, whose jobs decode, for all faults of decoders that it must survive."""
    yield from _outliving(tmp_path_factory.mktemp("decoding"), _DECODES)


def _outliving(folder: Path, *options: str) -> Iterator[Rig]:
    with rigged(folder, *options) as rig:
        yield rig
        rig.process.terminate()
        assert rig.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_harms_no_request_but_its_own(fault: Fault, shared: Rig, tmp_path: Path) -> None:
    check(fault, shared, tmp_path, fault.options)


@pytest.mark.parametrize(
    "fault", [name for name in FAULTS if re.match("the decoder|one of several", name)]
)
def test_a_fault_of_a_decoder_harms_no_other_image_of_its_job(
    fault: str, decoding: Rig, tmp_path: Path
) -> None:
    options = FAULTS[fault].options
    check(FAULTS[fault], decoding, tmp_path, (*options, _DECODES) if options else ())


def check(fault: Fault, shared: Rig, tmp_path: Path, options: Sequence[str]) -> None:
    """Inject a fault into the shared server or, if the fault has options, into a separate
    server."""
    with ExitStack() as stack:
        rig = stack.enter_context(rigged(tmp_path, *options)) if options else shared
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
