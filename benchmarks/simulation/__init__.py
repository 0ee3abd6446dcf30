"""A batching server in virtual time: docs/decisions on batches, and CHANGELOG on fair turns."""
