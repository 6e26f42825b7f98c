"""``kvreg demo``: scenarios with displaced sessions ("stories"), run on engines in this process.

A story is data (``story``, ``stories``, ``texts``). ``player`` runs it, ``verdict`` compares the
result with what is expected, and ``report`` prints it. The tests of the documented tables use the
same stories and the same player.
"""

from kvreg_service.demo.run import run_demo

__all__ = ["run_demo"]
