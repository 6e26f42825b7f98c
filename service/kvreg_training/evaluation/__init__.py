"""Checks of a checkpoint against transformers, and the scores of its answers."""
