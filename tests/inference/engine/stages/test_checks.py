"""A stage computes with no step and no adapter that would reach beyond its memory: native code
reads them as they are, and the engine may be another host's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from inference.engine.errors import StepInputFault
from inference.engine.stages.checks import adapter_of, checked_step, message_of_adapter
from inference.engine.stages.messages import AddAdapter, NewKV
from inference.engine.step_frames import Array, message_of
from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.errors import UnsupportedAdapterError
from inference.models.stages.layer_range import LayerRange, stage_config
from inference.models.step_input import ImageEmbeddings, StepImages, StepInput
from tests.cases import each_case
from tests.inference.models.parallel.tiny_configs import config_of

SIZE = NewKV(num_blocks=6, block_tokens=16, num_state_slots=4)
NUM_POSITIONS = 64
NUM_FEATURES = 8
STEP = StepInput.of_queries(
    [1, 2, 3, 4, 5],
    [17, 30],
    [1, 4],
    np.array([[5, 1, 0], [2, 3, 4]], dtype=np.int32),
    16,
    num_decodes=1,
    logit_rows=[0, 4],
    state_slots=([2, 3], [2, 3]),
)
IMAGES = StepImages(
    torch.zeros(3, 5, dtype=torch.int64),
    torch.tensor([1, 2]),
    ImageEmbeddings(torch.zeros(2, NUM_FEATURES), (torch.zeros(2, NUM_FEATURES),)),
)
LAST_SEEN = np.array([17, 32, 32, 32, 33], dtype=np.int32)


def _check(step: StepInput, num_rows: int = 5) -> StepInput:
    return checked_step(message_of(step), torch.zeros(num_rows, NUM_FEATURES), SIZE, NUM_POSITIONS)


def test_a_step_is_what_it_was() -> None:
    step = replace(STEP, images=IMAGES, last_seen=LAST_SEEN)
    found = _check(step)
    for name in ("positions", "slots", "block_table", "context_lens", "logit_rows", "last_seen"):
        assert np.array_equal(getattr(found, name), getattr(step, name))
    unplaced = _check(replace(STEP, images=replace(IMAGES, rotary=None))).images
    assert unplaced is not None and unplaced.rotary is None
    assert found.images is not None and torch.equal(found.images.row_ids, IMAGES.row_ids)
    for num_rows in (0, 4, 6):  # hidden rows of another number are refused
        with pytest.raises(StepInputFault):
            _check(STEP, num_rows)


@each_case(
    ("field", "at", "value"),
    [
        ("token_ids", 0, -1),
        *(("positions", 2, value) for value in (-1, 30, 64, 2**31 - 1)),
        *(("slots", 2, value) for value in (-1, 96, 2**31 - 1)),
        *(("query_start", 0, value) for value in (-1, 1)),
        *(("query_start", 1, value) for value in (-1, 0, 5, 6, 2**31 - 1, -(2**31))),
        *(("query_start", 2, value) for value in (4, 6)),
        *(("context_lens", 1, value) for value in (-(2**31), 0, 3, 33, 49, 65, 2**31 - 1)),
        *(("block_table", (0, 1), value) for value in (-1, 6, 2**31 - 1)),
        *(("logit_rows", 1, value) for value in (-1, 5)),
        *(("state_reads", 1, value) for value in (-1, 4)),
        *(("state_writes", 0, value) for value in (-1, 4)),
    ],
)
def test_an_index_beyond_the_storage_is_refused(field: str, at: Any, value: int) -> None:
    array = getattr(STEP, field).copy()
    array[at] = value
    with pytest.raises(StepInputFault):
        _check(replace(STEP, **{field: array}))


LENGTHS = ("token_ids", "positions", "slots", "query_start", "context_lens", "block_table")


@each_case(
    "changes",
    [
        *(
            {name: array}
            for name in (*LENGTHS, "state_reads")
            for whole in [getattr(STEP, name)]
            for array in (whole[:-1], whole[:0], whole[None], np.concatenate((whole, whole)))
        ),
        {"block_tokens": 32},
        *({"last_seen": LAST_SEEN + np.int32(off)} for off in (-1, 1, 2**30)),
        {"last_seen": LAST_SEEN[:-1]},
        {"num_decodes": 3},
        {"num_decodes": -1},
        {"logit_rows": np.zeros(6, dtype=np.int32)},
        {"images": replace(IMAGES, rotary=torch.zeros(3, 4, dtype=torch.int64))},
        {"images": replace(IMAGES, row_ids=torch.tensor([1, 5]))},
        {"images": replace(IMAGES, row_ids=torch.tensor([1, 2, 3]))},
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(StepInputFault):
        _check(replace(STEP, **changes))


@each_case(
    ("field", "array"),
    [
        *(
            (name, array)
            for name in LENGTHS
            for array in (
                Array("int32", (2**40,), b""),
                Array("int32", (-1, 3), bytes(8)),
                Array("int32", (3,), bytes(7)),
            )
        ),
        ("unread_ids", Array("int32", (1,), bytes(4))),
        ("images", Array("int64", (3, 2**40), b"")),
        ("images", Array("load", (3, 5), bytes(120))),
        ("images", Array("no_such", (0, 3), b"")),
        ("images", Array("int64", (3, 6), bytes(120))),
        ("arrays", None),
    ],
    ids=str,
)
def test_messages_that_no_step_was_made_into_are_refused(field: str, array: Any) -> None:
    sent = message_of(replace(STEP, images=IMAGES))
    assert sent.images is not None
    arrays, images = {} if field == "arrays" else dict(sent.arrays), sent.images
    if field == "images":
        images = type(images)(array, images.row_ids, None, [])
    elif array is not None:
        arrays[field] = array
    changed = msgspec.structs.replace(sent, arrays=arrays, images=images)
    with pytest.raises(StepInputFault):
        checked_step(changed, torch.zeros(5, NUM_FEATURES), SIZE, NUM_POSITIONS)


CONFIG = stage_config(config_of("llama"), LayerRange(1, 2))
NAME = "model.layers.0.self_attn.v_proj"
OUT, IN = adaptable_shapes(CONFIG)[NAME]
RANK = 3


def message(down: torch.Tensor, up: torch.Tensor, scale: float = 2.0) -> AddAdapter:
    return message_of_adapter(7, AdapterWeights({NAME: LowRank(down, up, scale)}))


GOOD = message(torch.ones(RANK, IN), torch.ones(OUT, RANK, dtype=torch.bfloat16))
DOWN = GOOD.modules[NAME].down
LIES = {
    "wider": message(torch.ones(RANK, IN + 1), torch.ones(OUT, RANK)),
    "fewer outputs": message(torch.ones(RANK, IN), torch.ones(OUT - 1, RANK)),
    "another rank": message(torch.ones(RANK, IN), torch.ones(OUT, RANK + 1)),
    "no rank": message(torch.ones(0, IN), torch.ones(OUT, 0)),
    "flat": message(torch.ones(RANK * IN), torch.ones(OUT, RANK)),
    "a number": message(torch.tensor(1.0), torch.ones(OUT, RANK)),
    "integers": message(torch.ones(RANK, IN, dtype=torch.int32), torch.ones(OUT, RANK)),
    "no scale": message(torch.ones(RANK, IN), torch.ones(OUT, RANK), scale=float("nan")),
    **{
        name: AddAdapter(
            number=1, modules={NAME: msgspec.structs.replace(GOOD.modules[NAME], down=down)}
        )
        for name, down in {
            "no dtype": msgspec.structs.replace(DOWN, dtype="nothing"),
            "more than its bytes": msgspec.structs.replace(DOWN, shape=(RANK, IN * 1000)),
        }.items()
    },
    **{
        f"no weight of this stage: {name}": AddAdapter(number=1, modules={name: GOOD.modules[NAME]})
        for name in ("model.layers.1.self_attn.v_proj", "lm_head", "")
    },
}


@each_case("name", list(LIES))
def test_what_would_be_read_past_its_end_is_refused(name: str) -> None:
    one = adapter_of(GOOD, CONFIG).modules[NAME]  # which crosses byte for byte
    assert torch.equal(one.down, torch.ones(RANK, IN)) and one.up.dtype is torch.bfloat16
    assert (one.up.shape, one.scale) == ((OUT, RANK), 2.0)
    kind, _, _ = name.partition(": ")
    match = kind if kind.startswith("no weight") else NAME
    with pytest.raises(UnsupportedAdapterError, match=match):
        adapter_of(LIES[name], CONFIG)
