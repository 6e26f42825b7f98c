"""``python -m kvreg_training``."""

from kvreg_training.cli import app

if __name__ == "__main__":
    app()
