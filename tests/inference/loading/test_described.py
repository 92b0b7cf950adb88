"""Weight files whose tensors have other shapes than their config declares are refused by name,
and so is the check of files before other models are evicted for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from inference.loading.described import check_module_tensors, check_tensors
from inference.loading.file_check import FileCheckOrder, check
from inference.loading.loader import open_model
from inference.loading.weights.tensor_files import MadeTensor, TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.layer_configs import ExpertsConfig, MambaConfig
from inference.protocol import load_errors as errors
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadFailure
from tests.cases import each_case
from tests.inference.loading.conftest import edit_json, edit_tensors, opened, save_gguf
from tests.inference.loading.editable_gguf import EditableGGUF
from tests.inference.loading.mutations.subjects import SUBJECTS
from tests.inference.models.dense_weights import TINY
from tests.inference.models.vision.tiny_qwen import QWEN3_VL

LAYER = "model.layers.0."


def declared_files(shapes: dict[str, tuple[int, ...]]) -> TensorFiles:
    return TensorFiles(
        {name: MadeTensor(shape, "F32", 0, torch.Tensor) for name, shape in shapes.items()}
    )


EXPERTS = ExpertsConfig(num_experts=2, experts_per_token=1, intermediate_size=32)
SIZES: dict[str, Any] = {"vocab_size": 8, "intermediate_size": 64, "num_layers": 1}
SPARSE: dict[str, Any] = {"architecture": "mixtral", "mlps": ("sparse",), "experts": EXPERTS}
CONFIG = replace(TINY, tie_embeddings=True, **SIZES, **SPARSE)
Shapes = dict[str, tuple[int, ...]]


def shapes_of(config: ModelConfig) -> Shapes:
    """Each tensor that a family declares, experts one by one."""
    return {
        name: tensor.shape[1:] if tensor.parts else tensor.shape
        for tensor in family_of(config).tensors(config)
        for name in tensor.parts or (tensor.name,)
    }


EXPERT, SHARED = f"{LAYER}mlp.experts.1.down_proj", f"{LAYER}mlp.shared_expert"
WITH_SHARED = replace(CONFIG, experts=replace(EXPERTS, shared_intermediate_size=32))
MAMBA = MambaConfig(num_heads=4, head_dim=16, num_groups=2, state_size=16, conv_kernel=4)
STATES = replace(CONFIG, architecture="bamba", mixers=("mamba",), mamba=MAMBA, mlps=())
STATE = f"{LAYER}mamba."


@each_case(
    ("config", "changes", "words"),
    [
        (CONFIG, {}, None),
        (CONFIG, {f"{EXPERT}.weight": (64, 16)}, rf"{EXPERT}\.weight is 64 x 16 and .* 64 x 32"),
        (CONFIG, {f"{EXPERT}.bias": (3,)}, "is 3 and should be 64"),
        # Axes of one entry may be left out and not added.
        *((WITH_SHARED, {f"{SHARED}_gate.weight": gate}, None) for gate in ((1, 64), (64,))),
        *(
            (WITH_SHARED, {name: shape}, f"{name} is")
            for name, shape in (
                (f"{SHARED}_gate.weight", (64, 1)),
                ("model.embed_tokens.weight", (1, 8, 64)),
                ("model.norm.weight", (64, 1)),
                (f"{LAYER}mlp.gate.weight", (2, 1, 64)),
            )
        ),
        # Vectors of a state may be folded.
        (
            STATES,
            {f"{STATE}{name}": (4, 1) for name in ("A_log", "D")}
            | {f"{STATE}conv1d.weight": (MAMBA.conv_channels, 4), f"{STATE}norm.weight": (2, 32)},
            None,
        ),
        (STATES, {f"{STATE}D": (1, 5)}, f"{STATE}D is"),
        (STATES, {f"{STATE}conv1d.weight": (4, 128)}, f"{STATE}conv1d.weight is"),
    ],
)
def test_each_tensor_is_checked_by_itself(
    config: ModelConfig, changes: Shapes, words: str | None
) -> None:
    with nullcontext() if words is None else pytest.raises(errors.WrongShapeError, match=words):
        check_tensors(config, declared_files(shapes_of(config) | changes))
    if not changes:
        fewer = {name: one for name, one in shapes_of(config).items() if ".experts.1." not in name}
        with pytest.raises(
            errors.MissingTensorError, match=r"lack .*experts\.1\.gate_proj.* and 2 more"
        ):
            check_tensors(config, declared_files(fewer))


def test_tensors_that_a_module_calls_alike_hold_as_many_numbers() -> None:
    """Files of other names are transformers' own business, and so is how axes are turned."""
    declared = {"wte.weight": (8, 64), "h.0.attn.weight": (64, 192)}
    files = {"transformer.wte.weight": (8, 64), "h.0.attn.weight": (192, 64), "h.0.mask": (9,)}
    check_module_tensors(declared, declared_files(files), "transformer")
    with pytest.raises(errors.WrongShapeError, match=r"transformer\.wte\.weight is 7 x 64"):
        check_module_tensors(
            declared, declared_files(files | {"transformer.wte.weight": (7, 64)}), "transformer"
        )


@each_case(
    ("subject", "name", "shape", "words"),
    [
        ("llama", "lm_head.weight", (60, 64), "60 x 64 and should be 64 x 64"),
        # No family declares it; it is checked because it is read.
        ("llama", f"{LAYER}self_attn.q_proj.bias", (48,), "48 and should be 64"),
        ("bert", "embeddings.word_embeddings.weight", (63, 32), "63 x 32 and should be 64 x 32"),
        ("bert", "encoder.layer.1.output.dense.weight", (32, 63), "should be 32 x 64"),
        ("a transformers module", "gpt_neox.embed_in.weight", (60, 64), "should be 64 x 64"),
        ("mxfp4", f"{LAYER}mlp.experts.down_proj_bias", (2, 64), "and should be 2 x 64"),
    ],
)
def test_a_tensor_of_another_size_is_named(
    tmp_path: Path, subject: str, name: str, shape: tuple[int, ...], words: str
) -> None:
    source = SUBJECTS[subject](tmp_path)
    edit_tensors(source, {name: torch.zeros(shape)})
    with pytest.raises(errors.WrongShapeError, match=words):
        opened(source, tmp_path)


def test_a_stack_of_experts_has_three_axes(tmp_path: Path) -> None:
    file = EditableGGUF.read(SUBJECTS["qwen3moe.gguf"](tmp_path))
    info = next(info for info in file.infos if "ffn_down_exps" in info.name)
    info.sizes = [info.sizes[0], info.sizes[1] * info.sizes[2]]
    with pytest.raises(errors.BadFileError, match=r"cannot be read|no stack of experts"):
        opened(file.write(tmp_path / "y.gguf"), tmp_path)


def test_an_embedding_models_config(tmp_path: Path) -> None:
    for number, (changes, words) in enumerate(
        (
            ({"pad_token_id": 64}, "padding token 64 is outside the vocabulary of 64"),
            ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
            ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
            ({"architectures": [3]}, "cannot be read"),
            ({"num_attention_heads": 2.0}, "builds no 'bert'"),
            ({"hidden_size": 48}, "is 32 and should be 48"),
        )
    ):
        source = SUBJECTS["bert"](tmp_path / str(number))
        edit_json(source / "config.json", **changes)
        with pytest.raises(errors.BadFileError, match=words):
            opened(source, tmp_path)


def _cut_off(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-64])


DOWN, ODD = "model.layers.0.mlp.down_proj.weight", torch.zeros(63, 96)
BREAKS: dict[str, Callable[[Path], object]] = {
    "unknown_architecture": lambda folder: edit_json(folder / "config.json", model_type="lama"),
    "bad_file: a number": lambda folder: edit_json(folder / "config.json", num_key_value_heads=3),
    "bad_file: no JSON": lambda folder: (folder / "config.json").write_text("{"),
    "bad_file: weights that end early": _cut_off,
    "bad_file: a tensor that is not there": lambda folder: edit_tensors(folder, {DOWN: None}),
    "bad_file: a tensor of another shape": lambda folder: edit_tensors(folder, {DOWN: ODD}),
    "missing_file": lambda folder: (folder / "config.json").unlink(),
}


def _checked(path: Path, weights: tuple[Path, ...] = (), **spec: object) -> LoadFailure | None:
    named = {"source": f"path:{path}"} | spec
    asked = LoadSpec(job_id="j", model="m", devices=["cpu"], **named)  # type: ignore[arg-type]
    paths = [str(path) for path in weights]
    return check(FileCheckOrder(spec=asked, weights=paths, free_memory_bytes=1 << 34)).failure


def _check_refused(source: Path, cache_dir: Path, code: str, words: str = "") -> None:
    """As its load refuses it."""
    spec = LoadSpec(job_id="j", model="m", source=f"path:{source}", devices=["cpu"])
    with pytest.raises(errors.LoadError) as refused:
        open_model(spec, cache_dir, lambda _: None)
    failure = _checked(source)
    assert failure == refused.value.failure
    assert failure.code == code and words in failure.message


@each_case("case", BREAKS)
def test_a_directory_is_refused_as_by_its_load(tiny_directory: Path, case: str) -> None:
    directory = copytree(tiny_directory, tiny_directory.parent / case)
    assert _checked(directory) is None
    BREAKS[case](directory)
    _check_refused(directory, directory.parent, case.partition(":")[0])


def _gguf(tiny_directory: Path, name: str) -> Path:
    weights = load_file(tiny_directory / "model.safetensors")
    return save_gguf(tiny_directory.parent / name, weights)


def test_a_gguf_file_and_a_setting_are_refused_as_by_their_load(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing = QWEN3_VL.save(tmp_path / "model")
    assert _checked(seeing) is None
    monkeypatch.setenv("HELEXA_VISION_MAX_PIXELS", "1")
    words = "HELEXA_VISION_MAX_PIXELS is 1, and"
    _check_refused(seeing, tmp_path / "cache", "bad_setting", words)
    path = _gguf(tiny_directory, "tiny.gguf")
    assert _checked(path) is None
    path.write_bytes(path.read_bytes().replace(b"llama", b"lamas"))
    _check_refused(path, tmp_path, "unknown_architecture")
    path.write_bytes(b"GGUF")
    _check_refused(path, tmp_path, "bad_file")
    edit_tensors(tiny_directory, {DOWN: None})
    _check_refused(_gguf(tiny_directory, "lacking.gguf"), tmp_path, "bad_file", "down_proj")


HUB = "huggingface:a/b"


def test_of_downloaded_files_each_model_s_own_are_read(tiny_directory: Path) -> None:
    """A draft model's too, where its drafts can be used."""
    own, draft = _gguf(tiny_directory, "own.gguf"), _gguf(tiny_directory, "draft.gguf")
    safetensors = tiny_directory / "model.safetensors"
    named = [
        {"speculation": "draft_model", "draft_model": source}
        for source in ("huggingface:a/drafts", f"path:{draft}")
    ]
    assert [_checked(own, (own, draft), source=HUB, **one) for one in named] == [None, None]
    draft.write_bytes(b"GGUF")
    for one in named:
        failure = _checked(own, (own, draft), source=HUB, **one)
        assert failure is not None and failure.code == "bad_file" and "draft" in failure.message
    for weights, is_refused in (
        ((own, draft), False),  # a file that this load does not name
        ((draft, own), True),
        ((safetensors, draft), False),
    ):
        failure = _checked(own, weights, source=HUB)
        assert (failure is not None and failure.code == "bad_file") is is_refused, weights
    edit_json(tiny_directory / "config.json", model_type="mistral", sliding_window=16)
    assert _checked(own, (safetensors, draft), source=HUB, **named[0]) is None
    _cut_off(tiny_directory)
    failure = _checked(own, (safetensors, draft), source=HUB)
    assert failure is not None and failure.code == "bad_file"
