"""Whole networks from their files to their scores, through every module of models/."""
