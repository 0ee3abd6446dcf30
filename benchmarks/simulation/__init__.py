"""A batching server in virtual time: its queue, its arrivals, and its schedulers."""
