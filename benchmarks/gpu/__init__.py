"""Measurements on a GPU that is available for a short time: proof, plan, run, report, carry."""
