"""Contains the engines that run a classifier, their interface, and the choice between them."""
