"""Fixtures of every folder."""

import contextlib
import os

import pytest

with contextlib.suppress(ImportError):  # the tests that a GPU is wanted for do without
    from hypothesis import settings

    # How long an example takes says more about the machine's other work than about the code.
    # The examples are the same in every run, so that a change is judged by itself, not by luck;
    # `HYPOTHESIS_PROFILE=search`, which `make test-all` sets, looks for new ones.
    settings.register_profile("convoy", deadline=None, derandomize=True)
    settings.register_profile("search", deadline=None)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "convoy"))


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
