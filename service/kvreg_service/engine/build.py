"""Builds an engine from its options: reads the model, checks that it fits, reserves memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.chat.prompt.template import ChatTemplate
from kvreg_service.chat.tokens.tokenizer import Tokenizer
from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.labels import CurrentState
from kvreg_service.core.memory.budget import KVDtype, MemoryPlan
from kvreg_service.core.requests.identity import Epoch
from kvreg_service.core.scheduling.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.states.cost import CostModel
from kvreg_service.core.states.policies import find_policy
from kvreg_service.engine.engine import Engine, EngineParts
from kvreg_service.engine.interface.observer import Observer
from kvreg_service.engine.interface.profile import EffectiveProfile
from kvreg_service.engine.loop.runner import ModelRunner
from kvreg_service.engine.options import EngineOptions
from kvreg_service.engine.reservation import plan_cpu
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.checkpoint import Progress, load_weights, weights_digest
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.hybrid import HybridModel

logger = logging.getLogger(__name__)

_KV_DTYPES = {KVDtype.FP32: torch.float32, KVDtype.FP16: torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model and its text side, which several engines of one process may share.

    Weights are read only, so sharing them is safe; the echo index belongs to an engine.
    """

    config: ModelConfig
    model: HybridModel
    tokenizer: Tokenizer
    template: ChatTemplate
    weights_digest: str


def load_model(options: EngineOptions, on_progress: Progress | None = None) -> LoadedModel:
    """Read a model folder.

    Raises:
        CheckpointError: files are missing or wrong; all problems are named at once.
    """
    path = options.model_path
    device = torch.device(options.device)
    config = ModelConfig.from_path(path)
    weights = load_weights(path, config, dtype=torch.float32, on_progress=on_progress)
    return LoadedModel(
        config=config,
        model=HybridModel(config, weights, device),
        tokenizer=Tokenizer.from_path(path),
        template=ChatTemplate.from_path(path),
        weights_digest=weights_digest(path),
    )


def build_engine(
    options: EngineOptions,
    loaded: LoadedModel | None = None,
    observers: tuple[Observer, ...] = (),
) -> tuple[Engine, PromptBuilder]:
    """Return a running engine and the prompt builder that belongs to it.

    ``observers`` receive everything that is reported.

    Raises:
        ConfigurationError: options contradict each other or cannot be served on this device.
        DoesNotFit: the profile needs more memory than is available; names the difference.
        CheckpointError: see `load_model`; or the logits of the model are not finite.
    """
    if options.kv_dtype not in _KV_DTYPES:
        raise ConfigurationError(
            f"kv_dtype is {options.kv_dtype.value}, and the CPU stores fp32 or fp16"
        )
    # Whether it fits depends on the configuration only, so it is checked before any loading.
    plan = plan_cpu(ModelConfig.from_path(options.model_path), options)
    plan.require_fit()
    loaded = loaded or load_model(options)
    torch.set_num_threads(options.num_threads)
    device = torch.device(options.device)
    states = StateSlots.allocate(loaded.config, options.layout.num_slots, torch.float32, device)
    pages = KVPages.allocate(loaded.config, plan.num_pages, _KV_DTYPES[options.kv_dtype], device)
    _check_reservation(plan, states, pages)
    runner = ModelRunner(loaded.model, states, pages, loaded.config.vocab_size)
    # Ready means that it computes tokens.
    runner.require_a_token()
    cost = CostModel(slot_bytes=plan.demand.slot_bytes, page_bytes=plan.demand.page_bytes)
    max_context_tokens = plan.demand.max_context_tokens
    limits = SchedulerLimits(
        layout=options.layout,
        num_pages=plan.num_pages,
        max_context_tokens=max_context_tokens,
        prefill_chunk_tokens=options.prefill_chunk_tokens,
        queue_limit=options.queue_limit,
        queue_timeout_s=options.queue_timeout_s,
    )
    echo = EchoIndex(loaded.tokenizer)
    profile = EffectiveProfile(
        model=options.model_name,
        profile=options.profile,
        profile_hash=options.profile_hash,
        lanes=options.lanes,
        entries=options.entries,
        current_state=CurrentState.KEEP if options.keep_current else CurrentState.DROP,
        eviction=options.eviction,
        max_context_tokens=max_context_tokens,
        kv_dtype=options.kv_dtype.value,
        device=options.device,
        anchors=options.layout.anchors,
    )
    engine = Engine(
        EngineParts(
            options=options,
            config=loaded.config,
            epoch=_epoch(loaded, options),
            scheduler=Scheduler(
                limits, find_policy(options.eviction), cost, prefix_reuse=options.prefix_reuse
            ),
            runner=runner,
            tokenizer=loaded.tokenizer,
            echo=echo,
            profile=profile,
            observers=observers,
        )
    )
    logger.info(
        "engine ready: %d state slots of %d bytes, %d pages of %d bytes, context %d tokens",
        options.layout.num_slots, plan.demand.slot_bytes, plan.num_pages, plan.demand.page_bytes,
        max_context_tokens,
    )  # fmt: skip
    builder = PromptBuilder(
        loaded.tokenizer, loaded.template, echo, max_context_tokens=max_context_tokens
    )
    return engine, builder


def _check_reservation(plan: MemoryPlan, states: StateSlots, pages: KVPages) -> None:
    assert states.slot_bytes == plan.demand.slot_bytes, "a slot differs from its arithmetic"
    assert pages.page_bytes == plan.demand.page_bytes, "a page differs from its arithmetic"


def _epoch(loaded: LoadedModel, options: EngineOptions) -> bytes:
    config = loaded.config
    return Epoch(
        weights_digest=loaded.weights_digest,
        tokenizer_digest=loaded.tokenizer.digest,
        template_digest=loaded.template.digest,
        kv_dtype=options.kv_dtype.value,
        rope=f"theta={config.rope_theta} dim={config.rotary_dim}",
        speculative="none",
        tensor_parallel=1,
    ).digest()
