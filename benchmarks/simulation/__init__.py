"""A batching server in virtual time: its queue, its arrivals, and who decides what to dispatch."""
