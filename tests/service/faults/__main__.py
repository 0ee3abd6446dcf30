"""Prints the table of faults."""

from tests.service.faults.catalog import table

print(table(), end="")
