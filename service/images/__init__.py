"""Decodes image files to pixels, within limits on bytes, pixels, scans, time and memory.

header ── jpeg, png, webp ── file ── decode ─┬─ pool: threads that share one memory budget
                                             └─ process: large images
"""
