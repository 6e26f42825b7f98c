"""The pure core: slots, pages, sequences, the registry, admission and the scheduler.

Standard library only, and of that only what has no effect: no clock, no environment, no threads,
no logging. Time enters as an argument, results leave as values. All else is an adapter around it.
"""
