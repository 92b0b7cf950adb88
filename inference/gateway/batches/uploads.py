"""A form with a file in it, read by Django's parser from a file into another one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, Any, cast

from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http.multipartparser import MultiPartParser, MultiPartParserError

from inference.gateway.server.bodies import spooled_file
from inference.wire.errors import InvalidRequestError, MissingParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """``content`` is a temporary file once it is large."""

    name: str
    content: IO[bytes]
    fields: dict[str, str]


def read_upload(content_type: str, body: IO[bytes]) -> Upload:
    """Raises ``InvalidRequestError``."""
    if not content_type.startswith("multipart/form-data"):
        raise InvalidRequestError("Send the file as multipart/form-data.", param="file")
    num_bytes = body.seek(0, os.SEEK_END)
    body.seek(0)
    meta: dict[str, Any] = {"CONTENT_TYPE": content_type, "CONTENT_LENGTH": num_bytes}
    try:
        fields, files = MultiPartParser(meta, cast(Any, body), [_ToFile()], "utf-8").parse()
    except (MultiPartParserError, SuspiciousOperation) as error:
        # Django's bounds are on fields: a file without a name is one.
        raise InvalidRequestError(f"The form cannot be read: {error}", param="file") from None
    file = files.get("file")
    if file is None:
        raise MissingParameterError("file")
    form = {name: str(value) for name, value in fields.items()}
    assert file.file is not None, "a file that was not read"
    return Upload(name=str(file.name), content=file.file, fields=form)


class _ToFile(FileUploadHandler):
    """The gateway has bounded the body already."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self._content = spooled_file()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self._content.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile[bytes]:
        self._content.seek(0)
        return UploadedFile(self._content, str(self.file_name), size=file_size)
