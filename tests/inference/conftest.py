"""Small real tokenizers of both families, trained at once and saved as a load leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The capital of France is Paris. What is the capital of France?",
    "You are a helpful assistant. Bonjour, ça va très bien ! Straße, naïve café.",
    "日本語のテキスト 🙂 👩‍👩‍👧 and some code: def f(x):\n    return x\n",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def byte_level_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level BPE with ChatML tokens and template, no bos: like SmolLM2 and Qwen."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    config = {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    return _save(tokenizer, config, tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def thinking_dir(byte_level_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``byte_level_dir`` with markers of a thinking block, as ordinary added tokens (Qwen has them
    so), and two special ones that stand around a call."""
    tokenizer = tokenizers.Tokenizer.from_file(str(byte_level_dir / "tokenizer.json"))
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.add_special_tokens(["<call>", "</call>"])
    config = json.loads((byte_level_dir / "tokenizer_config.json").read_text())
    return _save(tokenizer, config, tmp_path_factory.mktemp("thinking"))


SEEING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Writes images as Qwen's templates do."""


@pytest.fixture(scope="session")
def seeing_dir(byte_level_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``byte_level_dir`` with the tokens that stand for images, and a template that writes them.
    The pad is the vocabulary's last."""
    tokenizer = tokenizers.Tokenizer.from_file(str(byte_level_dir / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"])
    config = json.loads((byte_level_dir / "tokenizer_config.json").read_text())
    config["chat_template"] = SEEING_TEMPLATE
    return _save(tokenizer, config, tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="session")
def sentencepiece_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BPE with byte fallback and a bos, as converted from sentencepiece: like Llama 2, Mistral."""
    special = ["<unk>", "<s>", "</s>"]
    alphabet = sorted({character for text in CORPUS[:2] for character in text} - {" "})
    words = ["▁The", "▁capital", "▁of", "▁is", "▁Paris", "▁▁", "▁▁▁"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *alphabet, *words]
    merges: list[tuple[str, str]] = [("▁", "▁"), ("▁▁", "▁")]
    for word in words[:5]:
        merges += [(word[:end], word[end]) for end in range(1, len(word))]
        pieces += [word[:end] for end in range(2, len(word))]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    return _save(tokenizer, config, tmp_path_factory.mktemp("sentencepiece"))


def _save(tokenizer: tokenizers.Tokenizer, config: dict[str, object], directory: Path) -> Path:
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory
