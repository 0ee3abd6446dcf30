"""What Convoy makes of 40 families of classifiers: docs/models.md and results/families.md."""
