"""The simulator's modules; `selftest/` has kernels with planted defects that it must find."""
