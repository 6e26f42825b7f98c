"""Routes and middleware to operate the engine: probes, metrics, registry, models, drain, /ui."""
