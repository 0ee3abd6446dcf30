"""Limits the time and memory that loading a hostile model file can take. Each check comes before
the work that it limits.

`bounds` lists all limits. `wire` counts the fields of a file before it is parsed, and `census`
counts nodes before functions are inlined. `ranks` and `sizes` check axes and sizes, and `structure`
checks the graph.
"""
