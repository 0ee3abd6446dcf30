"""The queue and its policy: which items form the next batch, and when. No HTTP, no device."""
