"""Reports for `convoy inspect`: a network's nodes and their cost, its plan and its launches."""
