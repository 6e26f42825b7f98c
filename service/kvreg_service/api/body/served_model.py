"""The served model, and the check of a request's ``model`` against it."""

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
        """Check the ``model`` of a request.

        Raises:
            ModelNotFound: ``model`` is not the served model.
        """
        if model != self.model_id:
            raise ModelNotFound(
                f"model '{model[:_MAX_SHOWN_CHARACTERS]}' does not exist; "
                f"this engine serves '{self.model_id}'",
                param="model",
            )
