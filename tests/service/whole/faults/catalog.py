"""Every fault, and the table of them."""

from tests.service.whole.faults.attacks import ATTACKS
from tests.service.whole.faults.clients import CLIENTS
from tests.service.whole.faults.fault import Fault
from tests.service.whole.faults.insides import INSIDES
from tests.service.whole.faults.messages import MESSAGES
from tests.service.whole.faults.processes import PROCESSES

FAULTS: dict[str, Fault] = {**CLIENTS, **MESSAGES, **ATTACKS, **INSIDES, **PROCESSES}

_HEAD = """# Faults

`pytest tests/service/whole/test_faults.py` injects these into a running server, one by one. After
each, every accepted request has been answered exactly once, the counters add up, nothing is left
inside, and the server answers the next images. `python -m tests.service.whole.faults` writes this
table; a test compares.

| fault | what the client sees |
| --- | --- |
"""


def table() -> str:
    """deploy/FAULTS.md."""
    rows = (f"| {fault.name} | {fault.seen} |\n" for fault in FAULTS.values())
    return _HEAD + "".join(rows)
