"""What a load names of the links between stages on several hosts. Imports no TLS."""

from __future__ import annotations

import hashlib

import msgspec


class LinkIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What one end of a replica's links proves itself with. Travels to its own host alone."""

    certificate: str
    """The certificate in PEM, signed by its own key. Other ends receive it, and accept no other."""
    private_key: str
    """The private key in PEM. It is a secret."""

    def __repr__(self) -> str:
        """Leaves out the secret: load messages are logged."""
        return f"LinkIdentity({hashlib.sha256(self.certificate.encode()).hexdigest()[:16]})"


class StageOf(msgspec.Struct, frozen=True, kw_only=True):
    """Which stage of a model a neuron holds for the engine of another neuron."""

    index: int
    """The stage's, in ``LoadSpec.stages``; 1 or more, since the engine has the first stage."""
    engine_neuron: str
    """The neuron that has the engine, and the stages that name no neuron."""
    engine_certificate: str
    """The engine's end of the links, in PEM."""
