"""Shows results as tables, as JSON, as plots, and as one HTML page with tables and plots."""
