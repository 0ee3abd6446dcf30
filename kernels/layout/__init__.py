"""Where the elements of tensors lie in memory."""
