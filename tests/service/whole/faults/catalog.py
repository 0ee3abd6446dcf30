"""Every fault, and the table of them."""

from tests.service.whole.faults.attacks import ATTACKS
from tests.service.whole.faults.clients import CLIENTS
from tests.service.whole.faults.fault import Fault
from tests.service.whole.faults.insides import INSIDES
from tests.service.whole.faults.messages import MESSAGES
from tests.service.whole.faults.processes import PROCESSES

FAULTS: dict[str, Fault] = {**CLIENTS, **MESSAGES, **ATTACKS, **INSIDES, **PROCESSES}

_HEAD = """# Faults

Injected one by one into a running server by `pytest tests/service/whole/test_faults.py`. Afterwards
every accepted request was answered exactly once, the counters add up, nothing is left inside, and
the server answers the next pictures. Written by `python -m tests.service.whole.faults`; a test
compares.

| fault | what its client sees |
| --- | --- |
"""


def table() -> str:
    """deploy/FAULTS.md."""
    rows = (f"| {fault.name} | {fault.seen} |\n" for fault in FAULTS.values())
    return _HEAD + "".join(rows)
