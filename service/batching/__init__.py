"""Collects items, such as images, into batches. Does not depend on HTTP or on devices."""
