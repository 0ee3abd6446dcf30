"""Checks which families of networks, such as ResNet or YOLO, run on Convoy's kernels. The results
are in docs/models.md and results/families.md."""
