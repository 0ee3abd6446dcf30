"""An engine's thread, its watchdog, worker threads, and the ranking of scores."""
