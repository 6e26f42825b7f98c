"""The shapes and protocols that other packages use of the engine."""
