"""A form with a file in it, read by Django's parser."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadedfile import SimpleUploadedFile, UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http.multipartparser import MultiPartParser, MultiPartParserError

from inference.wire.errors import InvalidRequestError, MissingParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    name: str
    content: bytes
    fields: dict[str, str]


def read_upload(content_type: str, body: bytes) -> Upload:
    """Raises ``InvalidRequestError``."""
    if not content_type.startswith("multipart/form-data"):
        raise InvalidRequestError("Send the file as multipart/form-data.", param="file")
    meta: dict[str, Any] = {"CONTENT_TYPE": content_type, "CONTENT_LENGTH": len(body)}
    try:
        fields, files = MultiPartParser(meta, io.BytesIO(body), [_InMemory()], "utf-8").parse()
    except (MultiPartParserError, SuspiciousOperation) as error:
        # Django's bounds are on fields: a file without a name is one.
        raise InvalidRequestError(f"The form cannot be read: {error}", param="file") from None
    file = files.get("file")
    if file is None:
        raise MissingParameterError("file")
    told = {name: str(value) for name, value in fields.items()}
    return Upload(name=str(file.name), content=file.read(), fields=told)


class _InMemory(FileUploadHandler):
    """The gateway has bounded the body already."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self._content = bytearray()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self._content += raw_data

    def file_complete(self, file_size: int) -> UploadedFile[bytes]:
        return SimpleUploadedFile(str(self.file_name), bytes(self._content))
