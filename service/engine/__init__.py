"""Runs engines: their thread and watchdog, a pool of threads, the cores they may use, and
ranking.
"""
