"""The bundled checkpoint: a small trained hybrid model, which is served by default.

The files lie beside this module in the Hugging Face layout. ``grammar`` holds the sentences that
the model was trained on; ``kvreg_training`` trains it.
"""

from pathlib import Path

REFERENCE_MODEL_PATH = Path(__file__).parent
