"""What there is: the objects of one target and the answers of its engines, as values."""
