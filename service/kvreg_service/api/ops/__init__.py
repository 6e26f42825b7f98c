"""Routes and middleware for operating an engine: probes, metrics, registry, models, admin, /ui."""
