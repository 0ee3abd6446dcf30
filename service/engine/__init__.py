"""The engine thread and its watchdog, worker threads, the cores they may use, and ranking."""
