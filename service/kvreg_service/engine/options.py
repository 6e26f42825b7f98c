"""The options of an engine: one frozen object, checked before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.memory.budget import KVDtype
from kvreg_service.core.memory.slots import SlotLayout


@dataclass(frozen=True)
class EngineOptions:
    """The settings that the engine reads. Defaults are those of the command line.

    ``memory_bytes`` is the limit for states and pages on the CPU. ``max_context_tokens`` None means
    the model's own limit, or what the pages hold if that is less.

    Raises:
        ConfigurationError: entries without prefix reuse; see also `SlotLayout`.
    """

    model_path: Path
    model_name: str
    lanes: int = 1
    entries: int = 1
    keep_current: bool = True
    anchors: int = 2
    eviction: str = "cost"
    prefix_reuse: bool = True
    max_context_tokens: int | None = None
    memory_bytes: int = 1 << 30
    num_pages: int | None = None
    kv_dtype: KVDtype = KVDtype.FP32
    prefill_chunk_tokens: int = 512
    queue_limit: int = 64
    queue_timeout_s: float = 60.0
    device: str = "cpu"
    num_threads: int = 1
    profile: str | None = None
    profile_hash: str = ""

    def __post_init__(self) -> None:
        if not self.prefix_reuse and self.entries > 0:
            raise ConfigurationError(
                f"prefix_reuse is false and entries is {self.entries}: without reuse no entry "
                "would ever be read; set entries to 0 or prefix_reuse to true"
            )
        self.layout  # noqa: B018 - its own checks run here, at construction

    @property
    def layout(self) -> SlotLayout:
        """The state slots of these options."""
        # Without reuse no anchor would be read.
        anchors = self.anchors if self.prefix_reuse else 0
        return SlotLayout(self.lanes, self.entries, self.keep_current, anchors)
