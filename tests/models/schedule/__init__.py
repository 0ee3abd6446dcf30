"""Orders of steps, and the model of time."""
