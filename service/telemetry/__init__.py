"""Records requests: counts, metrics, logs and traces."""
