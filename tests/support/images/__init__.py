"""Image files, good, damaged and hostile."""
