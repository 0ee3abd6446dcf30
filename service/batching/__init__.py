"""Forms batches by a queue and a policy, which know neither HTTP nor devices."""
