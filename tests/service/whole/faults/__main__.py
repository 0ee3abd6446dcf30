"""Prints the table of faults."""

from tests.service.whole.faults.catalog import table

print(table(), end="")
