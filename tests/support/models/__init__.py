"""Contains graphs, models (also hostile models) and classifiers for the tests of models."""
