"""Image files to pixels: header and limits first, then what decoding will take, then the decoding.

header ── jpeg, png, webp ── file ── cost ── decode
                                      └── pool: threads, and one budget of bytes for all of them
"""
