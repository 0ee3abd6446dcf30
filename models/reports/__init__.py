"""Makes the reports of `convoy inspect` on a network's nodes and cost, and on its plan."""
