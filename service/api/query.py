"""Reads the parameters in a request's query string."""

from collections.abc import Collection
from urllib.parse import parse_qsl

from service.errors import InvalidParameterError

# The most bytes of a query: parsing takes time in proportion to the length.
_MAX_BYTES = 1024


def read_query(query: bytes, names: Collection[str]) -> dict[str, list[str]]:
    """Return the values of the query's parameters by name.

    Raises InvalidParameterError if the query is too long, or if a parameter is not in `names`.
    """
    if not query:
        return {}
    check_length(query)
    parameters: dict[str, list[str]] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in names:
            *others, last = names
            only = f"only parameter is {last}"
            known = f"parameters are {', '.join(others)} and {last}" if others else only
            raise InvalidParameterError(f"unknown parameter {name[:20]!r}; the {known}")
        parameters.setdefault(name, []).append(value)
    return parameters


def check_length(query: bytes) -> None:
    """Raise InvalidParameterError if the query is too long."""
    if len(query) > _MAX_BYTES:
        raise InvalidParameterError(
            f"the query has {len(query)} bytes; at most {_MAX_BYTES} are allowed; shorten it"
        )
