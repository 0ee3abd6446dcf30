"""Shows results as tables, JSON and plots, or as an HTML page with tables and plots."""
