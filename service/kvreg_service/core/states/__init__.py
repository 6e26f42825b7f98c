"""Kept states: the tree of them, what they are worth, and which are freed first."""
