"""What the model generated, so that an echoed answer gives the same tokens again."""
