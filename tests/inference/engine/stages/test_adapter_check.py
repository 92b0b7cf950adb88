"""A stage uses no adapter whose shapes are not its weights': native code reads matrices as they
are, and the engine may be another host's."""

from __future__ import annotations

import msgspec
import pytest
import torch

from inference.engine.stages.checks import adapter_of, message_of_adapter
from inference.engine.stages.messages import AddAdapter, LowRankArrays
from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.errors import UnsupportedAdapterError
from inference.models.stages.layer_range import LayerRange, stage_config
from tests.cases import each_case
from tests.inference.models.parallel.tiny_configs import config_of

CONFIG = stage_config(config_of("llama"), LayerRange(1, 2))
NAME = "model.layers.0.self_attn.v_proj"
OUT, IN = adaptable_shapes(CONFIG)[NAME]
RANK = 3


def message(down: torch.Tensor, up: torch.Tensor, scale: float = 2.0) -> AddAdapter:
    return message_of_adapter(7, AdapterWeights({NAME: LowRank(down, up, scale)}))


GOOD = message(torch.ones(RANK, IN), torch.ones(OUT, RANK, dtype=torch.bfloat16))


def changed(**changes: object) -> AddAdapter:
    arrays = msgspec.structs.replace(GOOD.modules[NAME], **changes)
    return msgspec.structs.replace(GOOD, modules={NAME: arrays})


def test_an_adapter_crosses_byte_for_byte() -> None:
    one = adapter_of(GOOD, CONFIG).modules[NAME]
    assert torch.equal(one.down, torch.ones(RANK, IN)) and one.up.dtype is torch.bfloat16
    assert (one.up.shape, one.scale) == ((OUT, RANK), 2.0)


@each_case(
    "lie",
    [
        message(torch.ones(RANK, IN + 1), torch.ones(OUT, RANK)),
        message(torch.ones(RANK, IN), torch.ones(OUT - 1, RANK)),
        message(torch.ones(RANK, IN), torch.ones(OUT, RANK + 1)),
        message(torch.ones(0, IN), torch.ones(OUT, 0)),
        message(torch.ones(RANK * IN), torch.ones(OUT, RANK)),
        message(torch.tensor(1.0), torch.ones(OUT, RANK)),
        message(torch.ones(RANK, IN, dtype=torch.int32), torch.ones(OUT, RANK)),
        message(torch.ones(RANK, IN), torch.ones(OUT, RANK), scale=float("nan")),
        changed(down=msgspec.structs.replace(GOOD.modules[NAME].down, dtype="nothing")),
        changed(down=msgspec.structs.replace(GOOD.modules[NAME].down, shape=(RANK, IN * 1000))),
    ],
    ids=[
        *("wider", "fewer outputs", "another rank", "no rank", "flat", "a number", "integers"),
        *("no scale", "no dtype", "more than its bytes"),
    ],
)
def test_what_would_be_read_past_its_end_is_refused(lie: AddAdapter) -> None:
    with pytest.raises(UnsupportedAdapterError, match=NAME):
        adapter_of(lie, CONFIG)


@each_case("name", ["model.layers.1.self_attn.v_proj", "lm_head", "model.embed_tokens", ""])
def test_weights_that_are_not_the_stages_are_refused(name: str) -> None:
    arrays: LowRankArrays = GOOD.modules[NAME]
    with pytest.raises(UnsupportedAdapterError, match="no weight of this stage"):
        adapter_of(AddAdapter(number=1, modules={name: arrays}), CONFIG)
