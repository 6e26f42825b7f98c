"""transformers in this process: the model that tests call the oracle, with its own cache.

The cache is not kept between requests: transformers 5.5.4 starts a chunk of more than one token
from the zero state, so a kept cache could only be continued token by token, and a side request
would replace it anyway. Each prompt is therefore prefilled completely.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import torch
from answer import Answer, Messages, decode_rate
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging as transformers_logging


class Oracle:
    """Greedy decoding with an explicit loop, without the overhead of ``generate``."""

    name = "transformers"

    def __init__(self, path: Path) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._model = model.eval()
        ends = model.generation_config.eos_token_id
        self._end_ids = set(ends) if isinstance(ends, list) else {ends}

    @torch.inference_mode()
    def complete(self, messages: Messages, max_tokens: int) -> Answer:
        """Generate greedily and without thinking."""
        start_s = time.perf_counter()
        rendered = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=False,
        )
        prompt = cast(Tensor, rendered)
        prefill_s = time.perf_counter()
        cache = DynamicCache(config=self._model.config)
        logits = self._model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        token = logits[:, -1].argmax(-1, keepdim=True)
        ids = [int(token)]
        first_s = time.perf_counter()
        while ids[-1] not in self._end_ids and len(ids) < max_tokens:
            logits = self._model(token, past_key_values=cache, use_cache=True).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
            ids.append(int(token))
        end_s = time.perf_counter()
        rate = decode_rate(len(ids), end_s - first_s)
        return Answer(
            text=self._tokenizer.decode(ids, skip_special_tokens=True),
            prompt_tokens=prompt.shape[1],
            computed_tokens=prompt.shape[1],
            completion_tokens=len(ids),
            ttft_s=first_s - start_s,
            prefill_tokens_per_s=prompt.shape[1] / (first_s - prefill_s),
            decode_tokens_per_s=rate,
            client_decode_tokens_per_s=rate,
        )

    def reset_cache(self) -> None:
        """Do nothing: no state is kept between requests."""
