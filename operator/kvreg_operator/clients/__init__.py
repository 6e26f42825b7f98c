"""Requests to the API server and to one engine, and how their failures are classed."""
