"""What `convoy inspect` shows of a network: its nodes and their cost, its plan and its launches."""
