"""The kvreg inference service: core, model, engine, chat, API."""
