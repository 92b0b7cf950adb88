"""The structs that C++ and Python share, read from the headers that declare them."""

from __future__ import annotations

import ctypes
import re
from typing import Any

from inference.models.native.build import SOURCE_DIR

INT, POINTER = ctypes.c_int32, ctypes.c_void_p
TYPES: dict[str, Any] = {
    "int8_t": ctypes.c_int8,
    "int32_t": INT,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "Format": INT,
}
HEADERS = "formats.h", "linear.h", "low_rank.h", "model.h", "draw.h", "pack.h", "ggml_blocks.h"
_CONSTANT = re.compile(r"^constexpr int (\w+) = (\d+);", re.MULTILINE)
_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELDS = re.compile(r"^  (?:const )?(\w+)((?:\*| const)*) ([\w, \[\]]+);", re.MULTILINE)
_FIELD = re.compile(r"(\w+)(?:\[(\w+)\])?")


def _read_headers() -> tuple[dict[str, type[ctypes.Structure]], dict[str, int]]:
    """The structs that Python fills, and numbers that they are as large as, as C++ declares them:
    a line for each type of fields, the methods behind all fields."""
    structs: dict[str, type[ctypes.Structure]] = {}
    constants: dict[str, int] = {}
    for header in HEADERS:
        text = (SOURCE_DIR / header).read_text()
        constants |= {name: int(number) for name, number in _CONSTANT.findall(text)}
        for name, body in _STRUCT.findall(text):
            fields: list[tuple[str, Any]] = []
            for type_name, stars, names in _FIELDS.findall(re.split(r"\) const \{", body)[0]):
                kind: Any = structs.get(type_name) or TYPES.get(type_name)
                if stars:
                    is_struct = type_name in structs and stars == "*"
                    kind = ctypes.POINTER(structs[type_name]) if is_struct else POINTER
                for own, size in _FIELD.findall(names):
                    length = size and int(constants.get(size, size))
                    fields.append((own, kind * length if length else kind))
            if fields and all(kind is not None for _, kind in fields):
                structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return structs, constants


STRUCTS, CONSTANTS = _read_headers()
