"""Describes where the elements of tensors lie in memory."""
