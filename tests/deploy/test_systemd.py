"""The systemd unit is valid for systemd, and leaves a server enough time to stop."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.settings import Settings
from tests.support import ROOT

UNIT = ROOT / "deploy" / "convoy.service"


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze; Debian: systemd"
)
def test_systemd_finds_the_unit_valid(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    # Where the documentation installs it.
    unit.write_text(
        UNIT.read_text(encoding="utf-8").replace("/opt/convoy/bin/convoy", sys.executable)
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_has_the_time_to_answer_what_it_accepted() -> None:
    found = re.search(r"(?m)^TimeoutStopSec=(\d+)$", UNIT.read_text(encoding="utf-8"))
    assert found
    assert int(found[1]) > Settings().notice_s + Settings().drain_s
