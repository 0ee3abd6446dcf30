"""Records requests as counts, metrics, logs and traces."""
