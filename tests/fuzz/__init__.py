"""Coverage-guided fuzzing of all code that reads a client's bytes, with bounds on time and memory.

`python -m tests.fuzz TARGET --seconds N` searches for inputs with atheris (libFuzzer). The inputs
that it finds are stored in `corpus/TARGET`, whose files `test_fuzz` tries again in every run of the
tests. The target `lock` builds bodies of megabytes from its inputs, and measures for how long they
block all other threads.
"""
