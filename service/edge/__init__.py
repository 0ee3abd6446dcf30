"""Controls access to the server: API keys, connection limits, request rates, time limits."""
