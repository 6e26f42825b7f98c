"""The tokenizer and its cache, which tenants share fairly."""
