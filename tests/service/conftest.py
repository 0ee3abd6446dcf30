"""Fixtures: the command line in this process, and a server of two models, which tests do not
change."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import Run, convoy
from tests.support.servers.several_models import announced, make_models

if TYPE_CHECKING:
    from tests.support.service.triton import TritonClient

__all__ = ["Run", "convoy"]


@pytest.fixture(scope="session")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the addresses of a server of two models, by protocol."""
    with announced(
        make_models(tmp_path_factory.mktemp("models")), "--grpc-port", "0", "--shared-memory"
    ) as line:
        http, grpc = re.findall(r"127\.0\.0\.1:\d+", line)[:2]
        yield {"http": http, "grpc": grpc}


@pytest.fixture(scope="session")
def address(addresses: dict[str, str]) -> str:
    """Return the address for HTTP."""
    return addresses["http"]


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, addresses: dict[str, str]) -> Iterator["TritonClient"]:
    """Yield NVIDIA's client of the server, for each protocol."""
    # A machine that is lent for its GPU has no tritonclient, and its tests need none.
    from tests.support.service.triton import triton_client  # noqa: PLC0415

    with triton_client(request.param, addresses[request.param]) as opened:
        yield opened
