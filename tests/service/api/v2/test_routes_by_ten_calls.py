"""The example in docs/moving-from-triton.md runs over both protocols, and prints the output that
the page shows."""

import re
import runpy
from pathlib import Path

import pytest

from tests.support.servers.several_models import SAMPLES

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "docs" / "ten_calls.py"


def shown() -> list[str]:
    """Return the output that the page shows for a run."""
    page = (ROOT / "docs" / "moving-from-triton.md").read_text(encoding="utf-8")
    return re.findall(r"(?m)^    (\d+\. .*)$", page)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_that_moves_changes_its_address(
    addresses: dict[str, str], protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(SCRIPT))["main"](protocol, addresses[protocol], "digits", str(SAMPLES[3]))
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(".")[0] for line in printed] == [str(n) for n in range(1, 11)]
    expected = shown()
    # This server has another model beside the page's.
    expected[6] = expected[6].replace(": ", ": channels.v2 READY, ")
    assert printed == expected
