"""The engine thread and its watchdog, a pool of threads, the cores they may use, and ranking."""
