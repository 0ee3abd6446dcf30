"""In which order steps may run, and when each does by a model of time."""
