"""Grafana dashboards as code: built here, written to ``generated/``."""
