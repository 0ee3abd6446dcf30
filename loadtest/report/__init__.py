"""Shows results as tables, JSON, plots, and an HTML page with tables and plots."""
