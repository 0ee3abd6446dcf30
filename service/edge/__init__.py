"""Controls access to the server by API keys and limits on connections, rates and time."""
