"""Checks many families of classifiers, for docs/models.md and results/families.md."""
