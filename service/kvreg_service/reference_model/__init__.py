"""The bundled checkpoint: a small, really trained hybrid model that a laptop serves by default.

The files lie beside this module in the Hugging Face layout; ``training/`` holds what made them.
"""

from pathlib import Path

REFERENCE_MODEL_PATH = Path(__file__).parent
