"""What an engine counts, logs and passes to its observers."""
