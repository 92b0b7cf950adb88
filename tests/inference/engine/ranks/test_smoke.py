"""Which devices ``manage.py tp_smoke`` tries, and its message where there are none."""

from __future__ import annotations

import pytest

from inference.engine.ranks.smoke import chosen_devices, main
from tests.cases import each_case


@each_case(
    ("num_ranks", "kind", "cards", "num_cards", "expected"),
    [
        (2, None, None, 4, ["cuda:0", "cuda:1"]),
        (2, "cuda", None, 2, ["cuda:0", "cuda:1"]),
        (2, None, "3,1", 4, ["cuda:1", "cuda:3"]),
        (2, "cpu", None, 4, ["cpu"]),
        (2, None, None, 1, ["cpu"]),
    ],
)
def test_devices(num_ranks, kind, cards, num_cards: int, expected: list[str]) -> None:
    assert chosen_devices(num_ranks, kind, cards, num_cards) == expected


@each_case(
    ("num_ranks", "kind", "cards", "num_cards", "expected_error"),
    [
        (2, "cuda", None, 0, "this host has no CUDA devices, and 2 ranks need one each"),
        (2, None, "0,1", 1, "this host has 1 CUDA device, and 2 ranks need one each"),
        (2, None, "0,0", 2, "2 different cards"),
        (2, None, "0", 2, "2 different cards"),
        (2, None, "a,b", 2, "by number"),
        (2, "cpu", "0,1", 2, "by number"),
        (1, None, None, 2, "at least 2 ranks"),
    ],
)
def test_devices_that_are_not_here(
    num_ranks, kind, cards, num_cards: int, expected_error: str
) -> None:
    with pytest.raises(ValueError, match=expected_error):
        chosen_devices(num_ranks, kind, cards, num_cards)


@pytest.mark.slow
def test_two_ranks_on_the_processors_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith("\nstatus=ok tp_size=2 devices=cpu\n")


def test_no_card_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert main(["--device", "cuda"]) == 1
    assert capsys.readouterr().err == (
        "tp_smoke: this host has no CUDA devices, and 2 ranks need one each\n"
    )
