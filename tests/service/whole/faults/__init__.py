"""Faults, injected one by one: every accepted request is answered once, and the server continues.

`python -m tests.service.whole.faults` prints the faults as the table of deploy/FAULTS.md.
"""
