"""``python -m kvreg_service.reference_model.training``."""

from kvreg_service.reference_model.training.cli import app

if __name__ == "__main__":
    app()
