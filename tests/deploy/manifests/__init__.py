"""deploy/kubernetes: the rendered resources, and the container that they describe."""
