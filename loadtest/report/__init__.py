"""Shows results as tables, JSON, plots, and an HTML page with both tables and plots."""
