"""Sets limits on hostile models, checked before a model can cost time or memory.

`bounds` has every limit; `wire` counts a file's fields before it is parsed, `census` its nodes
before functions are inlined; `ranks` and `sizes` bound axes and numbers, `structure` the graph.
"""
