"""Coverage-guided fuzzing of all code that reads a client's bytes, with bounds on time and memory.

`python -m tests.fuzz TARGET --seconds N` looks for inputs with atheris (libFuzzer). What it finds
is kept in `corpus/TARGET`, whose files `test_fuzz` tries again in every run of the tests. The
target `lock` makes megabytes of its inputs, and its oracle is for how long no other thread can run.
"""
