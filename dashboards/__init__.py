"""Grafana dashboards as code: built here, imported from ``generated/``."""
