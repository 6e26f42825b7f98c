"""Requests: to the API server, to one engine, and how a failure of either is classed."""
