"""The grammar of the bundled model: seeded generators of the sentences that it was trained on.

The demo and tests use these sentences; ``kvreg_training`` generates its training data from them.
"""
