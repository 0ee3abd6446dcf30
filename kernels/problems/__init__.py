"""What is to be computed: problems as frozen dataclasses, each with its shapes."""
