"""Contains graphs, models (hostile ones too) and classifiers for the tests of models."""
