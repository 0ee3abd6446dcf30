"""Creates the reports of `convoy inspect` about a network and its costs, and about its plan."""
