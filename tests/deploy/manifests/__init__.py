"""deploy/kubernetes: what it renders to, and the container that it describes."""
