"""Compiles and launches kernels. Defines the interface of a device, and implements it for GPUs."""
