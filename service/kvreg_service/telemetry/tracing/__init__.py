"""Traces: the spans of each request, sent to an OTLP collector."""
