"""One pass over a target at a time: observe, plan, write the status, act. And when it is due."""
