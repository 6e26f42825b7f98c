"""``kvreg demo``: stories of displaced sessions, played on engines in this process.

A story is data (``story``, ``stories``, ``texts``), ``player`` plays it, ``verdict`` compares, and
``report`` shows. The tests of the documented tables use the same stories and the same player.
"""

from kvreg_service.demo.run import run_demo

__all__ = ["run_demo"]
