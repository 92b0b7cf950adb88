"""The endpoints that are passed through, and which task a model needs for each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PassedTask = Literal["transcription", "speech", "images", "moderation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedEndpoint:
    path: str
    task: PassedTask
    """The task of the models that answer it."""
    is_form: bool
    """The body is multipart/form-data, else a JSON object."""


ENDPOINTS = (
    PassedEndpoint(path="/v1/audio/transcriptions", task="transcription", is_form=True),
    PassedEndpoint(path="/v1/audio/translations", task="transcription", is_form=True),
    PassedEndpoint(path="/v1/audio/speech", task="speech", is_form=False),
    PassedEndpoint(path="/v1/images/generations", task="images", is_form=False),
    PassedEndpoint(path="/v1/images/edits", task="images", is_form=True),
    PassedEndpoint(path="/v1/images/variations", task="images", is_form=True),
    PassedEndpoint(path="/v1/moderations", task="moderation", is_form=False),
)

_AUDIO = ("file", "The audio, as a file; its length is what is charged.")
_IMAGES = ("n", "How many images; 1 to 10, and 1 by default.")
METERED_FIELDS = {
    "/v1/audio/transcriptions": (_AUDIO,),
    "/v1/audio/translations": (_AUDIO,),
    "/v1/audio/speech": (("input", "The text; its characters are what is charged."),),
    "/v1/images/generations": (_IMAGES,),
    "/v1/images/edits": (_IMAGES,),
    "/v1/images/variations": (_IMAGES,),
}
"""What each request is metered by, by path: names of fields and notes. All others are the
upstream's."""


def paths_of(task: str) -> str:
    """The paths of a task, in words; empty: the task is not passed through."""
    return ", ".join(one.path for one in ENDPOINTS if one.task == task)
