"""Creates the reports of `convoy inspect`: a network with its costs, and its plan of kernel
launches."""
