"""Who may come in: API keys, connections by address, requests by rate, time limits."""
