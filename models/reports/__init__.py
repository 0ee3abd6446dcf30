"""Creates the reports of `convoy inspect` about a network's nodes and costs, and about its plan."""
