"""What is recorded of requests and told: counts, metrics, logs, traces."""
