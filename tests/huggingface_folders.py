"""Tiny Hugging Face folders for tests: a BERT with random weights, a WordPiece tokenizer, texts with labels."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast
from transformers.utils import logging

logging.disable_progress_bar()

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "the",
    "a",
    "film",
    "was",
    "good",
    "bad",
    "very",
    "not",
    "great",
    "awful",
    "it",
    "i",
    "liked",
    "hated",
    "this",
    "story",
]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37}
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}


def bert_config(labels: int = 2, **sizes: Any) -> BertConfig:
    vocabulary = {"vocab_size": len(SPECIAL + WORDS), "max_position_embeddings": 40}
    return BertConfig(**{**vocabulary, **SIZES, "num_labels": labels, **sizes})


def seeded(network: type, config: Any, seed: int = 0) -> Any:
    """A network with random weights that are far from their start, so that every part matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def save_bert(folder: Path, labels: int = 2, **sizes: Any) -> Any:
    model = seeded(BertForSequenceClassification, bert_config(labels, **sizes))
    model.save_pretrained(folder)
    return model


def save_tokenizer(folder: Path) -> BertTokenizerFast:
    words = Tokenizer(models.WordPiece({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True)
    tokenizer = BertTokenizerFast(tokenizer_object=words, **{f"{name}_token": token for name, token in names})
    tokenizer.save_pretrained(folder)
    return tokenizer


def made_texts(rows: int, seed: int = 0) -> list[tuple[str, int]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(rows):
        words = rng.choice(WORDS, rng.integers(2, 9))
        found.append((" ".join(words), int(bool({"good", "great", "liked"} & set(words)))))
    return found


def write_table(path: Path, header: list[str], rows: list[Any]) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def change_json(path: Path, **changes: Any) -> None:
    """The JSON object of a file with other values; None removes a key."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
