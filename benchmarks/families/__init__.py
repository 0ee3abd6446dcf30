"""Checks 50 families of classifiers, for docs/models.md and results/families.md."""
