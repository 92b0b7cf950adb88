"""Results of planning: stages with predictions, or the missing bytes. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from inference.loading.costs.model_costs import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers ``[first_layer, last_layer)`` on one device. The first stage has the table of tokens
    and the output head beside its layers."""

    neuron: str
    device: str
    kind: Kind
    first_layer: int
    last_layer: int
    weight_bytes: int
    kv_bytes: int
    beside_bytes: int
    """The process and the activations of a step."""
    free_bytes: int

    @property
    def num_layers(self) -> int:
        return self.last_layer - self.first_layer

    @property
    def used_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.beside_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    stages: tuple[Stage, ...]
    num_blocks: int
    """KV blocks on every stage: the smallest stage decides."""
    kv_tokens: int
    step_s: float
    """Seconds of one stream's step: its stages and the links between them."""
    tokens_per_s: float
    """Of one stream."""
    tokens_per_s_of_many: float
    """Of ``MANY`` requests together."""
    num_running: int
    """The number of those requests whose blocks fit at once."""

    @property
    def neurons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stage.neuron for stage in self.stages))

    @property
    def where(self) -> str:
        """``box cuda:0 + cuda:1, attic cpu``."""
        parts = []
        for neuron in self.neurons:
            devices = [stage.device for stage in self.stages if stage.neuron == neuron]
            parts.append(f"{neuron} {' + '.join(devices)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    neuron: str
    device: str
    free_bytes: int
    num_layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRefusal:
    num_layers: int
    needed_bytes: int
    """The bytes that cards must have for weights, and for the KV of the planned tokens."""
    kv_bytes: int
    missing_bytes: int
    """Weights and KV of the layers that no device has room for."""
    rooms: tuple[Room, ...]
    """The devices that could hold most together; the most layers first."""

    @property
    def words(self) -> str:
        if not self.rooms:
            return f"it needs {_gb(self.needed_bytes)}, and no device takes loads"
        rooms = "; ".join(
            f"{room.device} of {room.neuron} has {_gb(room.free_bytes)} free, for "
            f"{room.num_layers} layers"
            for room in self.rooms
        )
        return (
            f"its {self.num_layers} layers need {_gb(self.needed_bytes)} ({_gb(self.kv_bytes)} of "
            f"keys and values), and {_gb(self.missing_bytes)} are missing: {rooms}"
        )


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
