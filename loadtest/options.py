"""What a load test is to do, read off its command line and checked before anything starts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadtest.pictures import Picture
from loadtest.schedule import Arrivals
from loadtest.summary import Load
from service.settings import SettingsError

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, None: 1.0}

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2


@dataclass(frozen=True)
class Conditions:
    """What is the same for every load."""

    seconds: float  # that are measured
    warmup_s: float  # before them, under the same load
    arrivals: Arrivals = Arrivals.POISSON
    seed: int = 0
    max_outstanding: int = 1000
    deadline_s: float | None = None  # that the server is told, and answers are held to
    timeout_s: float = 10.0
    model: str | None = None


@dataclass(frozen=True)
class Options:
    """A whole test: one server, some pictures, the loads one after another."""

    url: str
    pictures: Sequence[Picture]
    headers: Mapping[str, str]
    conditions: Conditions
    loads: Sequence[Load]
    p99_ms: float | None  # the bound
    search_from: float | None  # the rate from which to search for the highest within the bound
    verify: bool


def seconds(flag: str, text: str) -> float:
    """A time as people write it: 50ms, 1.5s, 10m; a number alone is seconds."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)(us|ms|s|m)?", text.strip())
    if found is None:
        raise SettingsError(f"{flag}: {text} is not allowed; write a time, as 50ms, 1.5s or 10m")
    return float(found[1]) * _UNITS_S[found[2]]


def positive_seconds(flag: str, text: str) -> float:
    """A time that is more than none."""
    time_s = seconds(flag, text)
    if time_s == 0:
        raise SettingsError(f"{flag}: {text} is not allowed; it must be longer")
    return time_s


def parse_headers(texts: Sequence[str]) -> dict[str, str]:
    """`Name: value` each."""
    parsed = {}
    for text in texts:
        name, colon, value = text.partition(":")
        value = value.strip()
        if not (colon and _HEADER_NAME.fullmatch(name) and value.isprintable()):
            raise SettingsError(f"--header: {text} is not allowed; write 'Name: value'")
        parsed[name] = value
    return parsed


def check_url(url: str) -> None:
    """SettingsError unless it says where a server is."""
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:  # a port that is no number, an address that is none
        wrong = True
    if wrong or parts.query or parts.fragment:
        raise SettingsError(f"{url} is no address of a server; write http://127.0.0.1:8000")
