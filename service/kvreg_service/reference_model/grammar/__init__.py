"""The grammar of the bundled model: the sentences that it was trained on, drawn from a seed.

The demonstration and tests talk to the model in these sentences; ``kvreg_training`` makes its
training data of them.
"""
