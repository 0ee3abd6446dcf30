"""All rules together: blocks, random graphs and well-known networks."""
