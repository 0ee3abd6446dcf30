"""The order of steps, and the cost model."""
