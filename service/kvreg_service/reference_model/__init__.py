"""The bundled checkpoint: a small, really trained hybrid model that a laptop serves by default.

The files lie beside this module in the Hugging Face layout. ``grammar`` holds the sentences that
the model was trained on; ``kvreg_training`` trains it.
"""

from pathlib import Path

REFERENCE_MODEL_PATH = Path(__file__).parent
