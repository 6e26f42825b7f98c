"""The model that is served, and the check of a request's ``model`` against it."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.errors import ModelNotFound

_MAX_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class ServedModel:
    """The one model of this engine. ``created_s`` is in seconds since the epoch."""

    model_id: str
    created_s: int

    def require(self, model: str) -> None:
        """Refuse a request for another model.

        Raises:
            ModelNotFound: ``model`` is not the one that is served.
        """
        if model != self.model_id:
            raise ModelNotFound(
                f"the model '{model[:_MAX_SHOWN_CHARACTERS]}' is not served here; "
                f"'{self.model_id}' is",
                param="model",
            )
