"""The packaging and deployment of Convoy: its files are data (Compose, Docker, hooks), not
modules."""
