"""What a choice's text is taken apart into."""

from __future__ import annotations

from inference.text.answers.choice_text import ChoiceText, Piece, merged


def pieces_of(choice: ChoiceText, text: str) -> list[Piece]:
    pieces: list[Piece] = []
    for token_id in choice.tokenizer.encode(text, add_special_tokens=False):
        pieces += choice.feed(token_id)[1]
        if choice.stop is not None:
            return merged(pieces)
    return merged([*pieces, *choice.flush()])
