"""Contains the engines that run a classifier, their protocol, and the choice of one to open."""
