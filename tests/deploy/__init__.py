"""How Convoy is packaged and deployed: its files are data (Compose, Docker, hooks), not modules."""
