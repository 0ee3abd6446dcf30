"""Makes the reports of `convoy inspect`: a network's nodes and their cost, its plan and
launches.
"""
