"""Makes launches of all operations but convolutions."""
