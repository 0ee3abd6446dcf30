"""A GPU that is at hand for a while: what is proved on it, what is measured, and what travels."""
