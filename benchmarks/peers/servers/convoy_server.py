"""Runs Convoy's real application with a decoder and an engine that do nothing."""

import socket

from benchmarks.peers.servers.work import settings_given
from benchmarks.serving.targets import no_op


def main() -> None:
    """Serve until terminated."""
    with socket.create_server(("127.0.0.1", settings_given().port)) as listener:
        no_op(listener)


if __name__ == "__main__":
    main()
