"""What queues targets: the watches and the resync; and the liveness probe."""
