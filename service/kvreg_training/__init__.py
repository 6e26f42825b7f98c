"""Trains the bundled checkpoint: data, tokenizer, trainers, export and evaluation.

Run it with ``python -m kvreg_training``. ``kvreg_service`` does not import it, and the engine's
wheel does not carry it.
"""
