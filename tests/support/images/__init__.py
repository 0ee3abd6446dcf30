"""Creates image files: good, damaged and hostile."""
