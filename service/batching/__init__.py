"""Forms batches: the queue and its policy decide which items go, and when. No HTTP, no device."""
