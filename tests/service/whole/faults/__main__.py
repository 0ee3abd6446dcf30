"""Prints the table of faults."""

from tests.service.whole.faults.catalogue import table

print(table(), end="")
