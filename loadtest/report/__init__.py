"""Results as tables, as JSON, as plots, and as one HTML page with both."""
