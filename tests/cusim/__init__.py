"""Tests of the simulator's modules; `selftest/` has kernels with planted defects that the simulator
must find."""
