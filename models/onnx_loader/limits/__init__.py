"""Limits the time and memory that loading a hostile model file can take. Each limit is checked in
advance.

`bounds` lists all limits. `wire` counts the fields of a file before it is parsed, and `census`
counts nodes before functions are inlined. `ranks` and `sizes` bound axes and sizes, and `structure`
bounds the graph.
"""
