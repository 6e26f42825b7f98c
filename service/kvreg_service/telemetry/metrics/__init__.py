"""Prometheus metrics: what is counted, what is read at a scrape, and the text format."""
