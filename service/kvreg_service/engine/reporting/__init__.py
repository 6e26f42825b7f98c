"""Counts, log lines and observers of one engine."""
