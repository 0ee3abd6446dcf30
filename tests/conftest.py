"""Fixtures of every folder."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked `anyio` are coroutines and run on asyncio, as the server does."""
    return "asyncio"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests recorded as their "summary"; it reaches here from xdist's workers too."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, text in report.user_properties:
                if name == "summary":
                    terminalreporter.section(report.nodeid)
                    terminalreporter.write_line(str(text))
