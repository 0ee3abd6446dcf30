"""Records requests in counts, metrics, logs and traces."""
