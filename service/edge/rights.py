"""Decides which clients may change the server's models and use shared memory.

A client with an API key has the rights that the key file lists for the key. If the server has no
keys, all clients have the rights in `Limits`. However, a web page of any site can send requests to
a server on the user's own machine. So requests from pages of other sites have no rights. Such a
request has the other site's name in its Origin header, or a Host header that is not a name of this
server.
"""

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from service.errors import ForbiddenError
from service.fair_queue import Right
from service.telemetry.record import RequestRecord

_WHAT = {
    Right.REPOSITORY: "change the models",
    Right.SHARED_MEMORY: "use this machine's shared memory",
}

# The most characters of a client's text that an error repeats.
_SHOWN = 40


def permit(record: RequestRecord, right: Right) -> None:
    """Raise ForbiddenError if the request's client does not have this right."""
    check_name(record, record.known_as)
    headers = record.headers
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", b"none")
    own = origin is None or origin.lower().partition(b"://")[2] == headers.get(b"host", b"").lower()
    if not own or site not in (b"none", b"same-origin"):
        raise ForbiddenError(
            f"pages of other sites may not {_WHAT[right]}; use a page of this server"
        )
    if right not in record.caller.rights:
        raise ForbiddenError(
            f"you may not {_WHAT[right]}; use an API key whose line in --api-key-file has the word"
            f" `{right.value}`, or a server that has no keys and listens on a loopback address"
        )


def check_name(record: RequestRecord, names: Collection[str] | None) -> None:
    """Raise ForbiddenError if the request's Host header is not a name of this server.

    `names` contains the server's names in lower case. Loopback addresses are always accepted. If
    `names` is None, any name is accepted: the server then requires API keys, which pages of other
    sites lack.
    """
    host = record.headers.get(b"host")
    if names is None or host is None:  # over gRPC, which browsers do not use, there is no Host
        return
    name = _name_in(host)
    if name not in names and not _is_loopback(name):
        raise ForbiddenError(
            f"the Host header {name[:_SHOWN]!r} is not a name of this server; use its address, or"
            " add the name to --hosts"
        )


def _name_in(host: bytes) -> str:
    """Return the name or address in a Host header, in lower case."""
    try:
        parts = urlsplit(b"//" + host)
        if parts.netloc == host and b"@" not in host:
            return (parts.hostname or b"").decode("latin-1").removesuffix(".")
    except ValueError:  # as `[`
        pass
    return host.decode("latin-1")  # no name, and none of the server's


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"  # which browsers resolve by themselves
