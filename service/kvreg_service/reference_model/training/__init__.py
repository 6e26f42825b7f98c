"""What made the bundled checkpoint: data, tokenizer, training, export and scores.

Run it with ``python -m kvreg_service.reference_model.training``. Nothing that
serves imports it; the demonstration takes its texts from the grammar.
"""
