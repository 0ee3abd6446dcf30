"""Limits what a hostile model can cost, and checks each limit before it can be exceeded.

`bounds` lists all limits. `wire` counts the fields of a file before it is parsed, and `census`
counts nodes before functions are inlined. `ranks` and `sizes` bound axes and sizes, and `structure`
bounds the graph.
"""
