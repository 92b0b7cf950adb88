"""Run as a program: compiles kernels to machine code by launching them as the product does, on a
driver that compiles for a card which need not be here and launches nothing.

    python -m tests.inference.models.cuda.compilation.compile_kernels 80 131
    python -m tests.inference.models.cuda.compilation.compile_kernels again

The first form compiles one in 131 cases for one architecture, others for each. Prints each kernel
with the bytes of shared memory that it takes. Ends with 1, naming each, where any does not compile,
fits the card in none of the tunings that a load tries, or spends too many instructions on a weight.
``again`` prints the kernels that Triton would compile again while it serves, from one step to the
next.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from inference.models.cuda.attention import TUNINGS, TritonAttention
from inference.models.cuda.drawing import draw_tokens, find_likeliest
from inference.models.cuda.experts import stacked_product
from inference.models.cuda.operators import TritonPointwise, triton_chunk_states, triton_rotation
from inference.models.cuda.packed import TILES, PackedLinear
from inference.models.cuda.packed_batch import BATCH_TILES, ROWS
from inference.models.cuda.packed_layout import step_features
from inference.models.device_step import DeviceStep
from inference.models.kv_format import KVFormat, cuda_formats
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.layers.linear import DenseLinear
from inference.models.layers.rope import rope_table
from inference.models.paged_kv import new_layer
from inference.models.step_input import StepInput, block_table_of
from tests.inference.models.cuda.tiny import CONFIG
from tests.inference.models.stored_weights import K_KINDS, KINDS, TABLE_KINDS, random_expert

SHARED_KIB = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""What a block may have: CUDA programming guide, technical specifications per compute
capability."""
CPU = torch.device("cpu")
HEAD_DIMS = (64, 80, 96, 128, 256)
SCORES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sinks": {},
    "soft cap": {"soft_cap": 30.0},
    "ahead": {"sees_ahead": True},
}
PACKED_KINDS = ("Q4", "Q5", "Q5 with minimums", "Q6", "Q8", *K_KINDS, *TABLE_KINDS)
MOST_PER_WEIGHT = {75: 17.0}
"""Instructions of a lane for a weight: 6 to 8.5 as written for few rows. Were layouts converted on
the way, or scales and codes read one by one, it would be 15 to 40. On 75 nothing is fetched
ahead."""
MOST_OF_BATCH = {100: 30.0}
"""In tiles it is up to 13, or 17 with groups of 16. Compute capability 10.0 keeps sums in a memory
of their own, through which they come and go."""


class Card:
    """A driver for a card that is not here."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture
        self.dtype = torch.bfloat16 if architecture >= 80 else torch.float16
        self.compiled: list[tuple[str, Any]] = []
        driver.set_active(self)
        run = JITFunction.run

        def compile_only(
            kernel: Any, *given: Any, grid: Any, warmup: bool = False, **own: Any
        ) -> Any:
            if "is_exact" in own:
                own["is_exact"] = False  # the tensors are not on a card
            found = run(kernel, *given, grid=grid, warmup=True, **own)
            assert len(found.asm["cubin"]) > 1000
            self.compiled.append((kernel.fn.__name__, found))

        JITFunction.run = compile_only

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def random(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self.dtype)

    @property
    def shared_bytes(self) -> int:
        return max(int(found.metadata.shared) for _, found in self.compiled)

    @property
    def limit(self) -> int:
        return SHARED_KIB[self.architecture] * 1024


def step_of(block_tokens: int = 32, num_columns: int = 2, num_rows: int = 1) -> DeviceStep:
    """Rows that decode, and a prompt."""
    table = block_table_of([range(num_columns)] * (num_rows + 1))
    last = num_columns * block_tokens - 1
    lens = [1] * num_rows + [last]
    starts = [last] * num_rows + [0]
    given = [0] * sum(lens), starts, lens, table, block_tokens
    return DeviceStep.of(StepInput.of_queries(*given, num_decodes=num_rows), CPU)


def attention(
    head_dim: int, kv_format: KVFormat, window: int, scores: str, is_chunked: bool, card: Card
) -> None:
    """The first tuning that fits the card, as a load looks for it; else the last."""
    step = step_of()
    layer = new_layer(96, 8, head_dim, kv_format, CPU)
    queries = card.random(len(step.positions), 32, head_dim)
    sinks = card.random(32) if scores == "sinks" else None
    for tuning in TUNINGS:
        card.compiled.clear()
        own = SCORES[scores] | {"is_chunked": is_chunked}
        attend = TritonAttention(window or None, 132, tuning, **own).of_step(step)
        attend(queries, None, None, layer, sinks)
        if card.shared_bytes <= card.limit:
            break


def rotation(head_dim: int, kv_format: KVFormat, norm: str, card: Card) -> None:
    is_after = norm == "after"
    config = replace(CONFIG, head_dim=head_dim, is_qk_norm_after_rotation=is_after)
    nothing, weight = DenseLinear(torch.zeros(1, 1)), card.random(head_dim) if norm else None
    layer = AttentionMixer(
        kind="attention", qkv=nothing, output=nothing, query_norm=weight, key_norm=weight
    )
    step, kv = step_of(), new_layer(96, config.num_kv_heads, head_dim, kv_format, CPU)
    num_heads = config.num_heads + 2 * config.num_kv_heads
    qkv = card.random(len(step.positions), num_heads * head_dim)
    triton_rotation(config, rope_table(config, 64, CPU), step)(layer, qkv, kv)


def packed(kind: str, card: Card) -> None:
    weight: Any = random_expert(kind, 0)
    linear = PackedLinear(weight, CPU, card.dtype)
    layout = linear.packed.layout
    linear.unpacked(card.dtype)
    for rows, tile in TILES.items():
        card.compiled.clear()
        linear.row_product(card.random(rows, linear.in_features))
        # A warp, 32 lanes, multiplies a part of a tile by a step's features each time round.
        step = step_features(layout["bits"], layout["group_features"])
        most = MOST_PER_WEIGHT.get(card.architecture, 8.5)
        check_speed(card, tile.outputs * step / 32, most if rows == min(TILES) else 2 * most)
    if card.architecture < 80:
        return
    for rows, processors in product(ROWS, (0, 132)):
        card.compiled.clear()
        batch = BATCH_TILES[layout["bits"], rows]
        linear._num_processors = processors
        linear.batch_product(card.random(rows, linear.in_features), batch)
        card.compiled[:] = card.compiled[:1]
        planes = 2 if layout["bits"] == 8 else 4
        weights = batch.outputs * batch.step_tiles * planes * layout["group_features"]
        check_speed(card, weights / (32 * batch.warps), MOST_OF_BATCH.get(card.architecture, 17.0))


def experts(kind: str, gathers: bool, card: Card) -> None:
    given = stacked_product(lambda _: random_expert(kind, 0), 2, CPU, card.dtype)
    for rows in (16, 32, 64, 128):
        ends = torch.tensor([rows // 2, rows], dtype=torch.int32)
        given(card.random(rows, 512), ends, torch.arange(rows) if gathers else None)


def others(card: Card) -> None:
    pointwise = TritonPointwise()
    pointwise.add_and_norm(card.random(2, 4096), card.random(2, 4096), card.random(4096), 1e-5)
    pointwise.gate(card.random(2, 8192))
    states = torch.zeros(2, 32, 128, 128)
    triton_chunk_states(states, states, states[0])
    scores = torch.zeros(2, 151_936)
    find_likeliest(scores)
    draw_tokens(scores, torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 4))


Compile = Callable[[Card], None]


def all_cases(architecture: int) -> Iterator[tuple[str, Compile]]:
    formats = cuda_formats(divmod(architecture, 10))
    yield "others", others
    scores = [name for name in SCORES if name != "ahead"]
    attentions = [*product(HEAD_DIMS, formats, (0, 4096), scores, (False,))]
    attentions += [(128, kv_format, 8192, "plain", True) for kv_format in formats]
    attentions += [(256, kv_format, 4096, "ahead", False) for kv_format in formats]
    for given in attentions:
        yield f"attention {given}", partial(attention, *given)
    for own in product(HEAD_DIMS, formats, ("", "before", "after")):
        yield f"rotation {own}", partial(rotation, *own)
    for kind in PACKED_KINDS:
        yield f"packed {kind}", partial(packed, kind)
    if architecture >= 80:
        for one in product((*KINDS, *K_KINDS, *TABLE_KINDS), (False, True)):
            yield f"experts {one}", partial(experts, *one)


def check_speed(card: Card, lane_weights: float, most: float) -> None:
    """``lane_weights``: how many weights a lane's loop multiplies each time round."""
    per_weight = loop_instructions(card.compiled[0][1].asm["cubin"]) / lane_weights
    assert per_weight <= most, f"{per_weight:.1f} instructions of a lane for each weight"


DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
LABEL = re.compile(r"^(\.L_x_\d+):")
INSTRUCTION = re.compile(r"^/\*[0-9a-f]+\*/\s+(.*)")
BRANCH = re.compile(r"\bBRA\S*\s.*?`\((\.L_x_\d+)\)")


def loop_instructions(cubin: bytes) -> int:
    """Counts the instructions of the longest loop, from its label to the branch back."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run(
            [DISASSEMBLER, "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    labels: dict[str, int] = {}
    longest = count = 0
    for line in map(str.strip, listing.splitlines()):
        if label := LABEL.match(line):
            labels[label[1]] = count
        elif instruction := INSTRUCTION.match(line):
            count += 1
            back = BRANCH.search(instruction[1])
            if back and back[1] in labels:
                longest = max(longest, count - labels[back[1]])
    return longest


def compile_some(architecture: int, stride: int) -> int:
    card, failures = Card(architecture), []
    first = list(SHARED_KIB).index(architecture) % stride
    for words, case in islice(all_cases(architecture), first, None, stride):
        card.compiled.clear()
        try:
            case(card)
        except Exception as error:  # noqa: BLE001 -- whatever a compiler raises; named below
            failures.append(f"{words}: {type(error).__name__}: {str(error)[-300:]}")
            continue
        if card.shared_bytes > card.limit:
            failures.append(f"{words}: {card.shared_bytes} bytes of shared memory")
        for name, kernel in card.compiled:
            print(f"{words}: {name}: {kernel.metadata.shared}", flush=True)
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


def compiled_again() -> set[str]:
    """Steps of other numbers of rows and blocks, whose tensors begin anywhere in an upload."""
    card = Card(80)
    linear = PackedLinear(random_expert("Q4", 0), CPU, card.dtype)  # type: ignore[arg-type]
    layer, nothing = new_layer(32 * 18, 2, 16, "bf16", CPU), DenseLinear(torch.zeros(1, 1))
    mixer = AttentionMixer(kind="attention", qkv=nothing, output=nothing)
    rope = rope_table(CONFIG, 32 * 17, CPU)
    for offset, size in product((0, 1), (1, 16, 17)):
        step = step_of(num_columns=size, num_rows=size)
        for name in ("positions", "slots", "sequences", "block_table"):
            tensor = getattr(step, name)
            buffer = tensor.new_zeros(offset + tensor.numel())
            object.__setattr__(step, name, buffer[offset:].view(tensor.shape))
        num_rows = len(step.positions)
        attention = TritonAttention(None, 1, TUNINGS[0])
        attention.of_step(step)(card.random(num_rows, 4, 16), None, None, layer)
        triton_rotation(CONFIG, rope, step)(mixer, card.random(num_rows, 8 * 16), layer)
        linear.row_product(card.random(size + 16, linear.in_features))
        linear.batch_product(card.random(size + 32, linear.in_features), BATCH_TILES[4, 64])
    found: dict[str, set[str]] = {}
    for name, kernel in card.compiled:
        found.setdefault(name, set()).add(kernel.hash)
    return {name for name, hashes in found.items() if len(hashes) > 1}


if __name__ == "__main__":
    if sys.argv[1] == "again":
        print("\n".join(sorted(compiled_again())), end="")
    else:
        sys.exit(compile_some(int(sys.argv[1]), int(sys.argv[2])))
