"""Rolling restarts of two servers under load: no client sees an error."""

from collections import Counter
from contextlib import ExitStack

import pytest

from tests.support.servers.restarts import Client, pair


@pytest.mark.parametrize(
    ("restarts", "notice_s"), [(2, 2.5), pytest.param(200, 0.3, marks=pytest.mark.slow)]
)
def test_no_request_fails_while_servers_are_restarted_by_turns(
    restarts: int, notice_s: float
) -> None:
    """Each client sends its next request within the notice, however busy the machine is.

    With two restarts, the second leaves only a server that was restarted itself. The clients pause
    so long that they leave the processor to other tests.
    """
    with pair("--notice-s", str(notice_s)) as servers, ExitStack() as stack:
        ports = [server.port for server in servers]
        kept = [Client(ports, 0.03, keep=True) for _ in range(4)]
        others = [Client(ports, 0.06, keep=False) for _ in range(2)]
        for client in (*kept, *others):
            stack.enter_context(client)
        for number in range(restarts):
            servers[number % 2].stop()
            servers[number % 2].start()
        stack.close()
    ended = sum((client.ended for client in (*kept, *others)), Counter())
    assert list(ended) == ["right"], ended
    assert ended["right"] > 20 * restarts
    # Those that keep their connections leave a server before it refuses.
    assert sum(client.refused for client in kept) == 0
    assert min(client.closed for client in kept) >= restarts
