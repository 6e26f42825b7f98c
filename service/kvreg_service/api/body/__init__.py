"""Where a body is read and checked: limits, shapes, and the fields that both APIs have."""
