"""What wakes the operator: watches, and a resync beside them; and the probe that judges both."""
