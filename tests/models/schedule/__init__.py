"""The order of steps, and the model of time."""
