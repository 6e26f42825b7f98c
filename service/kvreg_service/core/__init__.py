"""The pure core: slots, pages, sequences, the registry, admission and the scheduler.

Standard library only, without side effects: no clock, no environment, no threads, no logging. Time
enters as an argument, results leave as values. The other packages are adapters around it.
"""
