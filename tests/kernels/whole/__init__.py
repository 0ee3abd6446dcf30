"""All kernels: every case runs, and every kernel is compiled."""
