"""Makes image files: good, damaged and hostile."""
