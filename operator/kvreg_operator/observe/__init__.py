"""The objects of one target and the reports of its engines, as values."""
