"""Training of the byte-level BPE tokenizer, and its files.

Owns the size of the vocabulary, its special tokens and its corpus. Any UTF-8 text survives encoding
and decoding: there is no normalizer, and every byte is in the alphabet.
"""

from __future__ import annotations

import json
import shutil
import sysconfig
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random

from tokenizers import (  # type: ignore[import-untyped]
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)

from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_service.reference_model.grammar import wordlists as words
from kvreg_training.data.generator import Stage, make_chat
from kvreg_training.data.rendering import render
from kvreg_training.shape import ReferenceShape

ADDED_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]

# The split of Qwen3.5: letters with their marks, single digits, punctuation, white space.
_WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CORPUS_SEED = 7
_NUM_CORPUS_CHATS = 7000
_GENERAL_TEXT_CHARACTERS = 400_000


def load_tokenizer(folder: Path) -> Tokenizer:
    """Loads the tokenizer of a model folder."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the tokenizer's files and the chat template from one model folder to another."""
    target.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(source / name, target / name)


def train_tokenizer(target: Path) -> Tokenizer:
    """Trains a tokenizer and writes its files, with the bundled chat template, to ``target``.

    The corpus contains source files of the running Python and, on Debian, licence texts. Another
    Python or system therefore gives another vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ReferenceShape().vocab_size - len(ADDED_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    for content in ADDED_TOKENS:
        added = AddedToken(content, normalized=False, special=_is_special(content))
        add = tokenizer.add_special_tokens if added.special else tokenizer.add_tokens
        add([added])
    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_text(
        json.dumps(_tokenizer_config(tokenizer), indent=1), encoding="utf-8"
    )
    shutil.copyfile(REFERENCE_MODEL_PATH / "chat_template.jinja", target / "chat_template.jinja")
    return tokenizer


def _is_special(content: str) -> bool:
    # Think and tool markers stay in the text when special tokens are skipped, as in Qwen.
    return content.startswith("<|")


def _corpus() -> Iterator[str]:
    rng = Random(_CORPUS_SEED)
    for _ in range(_NUM_CORPUS_CHATS):
        text = render(make_chat(rng, Stage.MIXED)).text
        for content in ADDED_TOKENS:
            text = text.replace(content, "")
        yield text
    # Repeated, so that the words of the grammar become single tokens.
    for word in chain(
        words.NAMES, words.CITIES, words.ITEMS, words.WORDS, words.COLOURS, words.PROJECTS
    ):
        yield f" {word}" * 25 + f"\n{word}"
    yield from _general_text()


def _general_text() -> Iterator[str]:
    """Yields text outside the grammar, so that other prompts are not split into bytes."""
    standard_library = Path(sysconfig.get_path("stdlib"))
    files = chain(
        sorted(Path("/usr/share/common-licenses").glob("*")),
        sorted(standard_library.glob("[a-h]*.py"))[:40],
    )
    num_characters = 0
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        num_characters += len(text)
        if num_characters > _GENERAL_TEXT_CHARACTERS:
            return
        yield text


def _tokenizer_config(tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": ReferenceShape().max_position_embeddings,
        "split_special_tokens": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(content)): {
                "content": content,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "single_word": False,
                "special": _is_special(content),
            }
            for content in ADDED_TOKENS
        },
    }
