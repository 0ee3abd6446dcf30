"""Faults, which are injected one by one. Every accepted request is answered exactly once, and the
server continues.

`python -m tests.service.whole.faults` prints the faults as the table of deploy/FAULTS.md.
"""
