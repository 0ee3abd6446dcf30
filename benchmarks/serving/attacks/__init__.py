"""What one hostile client costs the others: the requests that cost most for each of their bytes."""
