"""The reconcile loop: per target observe, plan, write the status and act, when it is due."""
