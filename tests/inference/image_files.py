"""Image files, made byte by byte: whole ones where a test decodes them, else headers alone."""

from __future__ import annotations

import base64
import struct
import zlib

PNG_MARK = b"\x89PNG\r\n\x1a\n"


def png(width: int = 4, height: int = 3, *more: tuple[bytes, bytes]) -> bytes:
    """Red; ``more`` are chunks of those names after its size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\x00" + b"\xc8\x1e\x1e" * width) * height
    chunks = [(b"IHDR", head), *more, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return PNG_MARK + b"".join(_png_chunk(name, data) for name, data in chunks)


def _png_chunk(name: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + checksum


def jpeg(width: int, height: int, *, exif: bytes = b"", frame: int = 0xC0) -> bytes:
    """Up to its scan."""
    segments = [(0xE0, b"JFIF\x00" + bytes(9))]
    if exif:
        segments.append((0xE1, b"Exif\x00\x00" + exif))
    segments.append((0xC4, bytes(20)))
    segments.append((frame, struct.pack(">BHHB", 8, height, width, 1) + bytes(3)))
    segments.append((0xDA, bytes(6)))
    return b"\xff\xd8" + b"".join(
        struct.pack(">BBH", 0xFF, marker, 2 + len(data)) + data for marker, data in segments
    )


def exif(orientation: int, order: str = "<") -> bytes:
    mark = b"II*\x00" if order == "<" else b"MM\x00*"
    entries = [(0x0100, 3, 1, 7), (0x0112, 3, 1, orientation)]
    written = [struct.pack(f"{order}HHIHH", *entry, 0) for entry in entries]
    return mark + struct.pack(f"{order}IH", 8, len(entries)) + b"".join(written) + bytes(4)


def gif(width: int, height: int, *frames: tuple[int, int, int, int]) -> bytes:
    """``frames``: left, top, width and height of each."""
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    remark = b"\x21\xfe\x02hi\x00"
    images = [
        b"\x2c" + struct.pack("<HHHHB", *frame, 0) + b"\x02\x02\x44\x01\x00" for frame in frames
    ]
    return head + remark + b"".join(images) + b"\x3b"


def bmp(width: int, height: int) -> bytes:
    """White; rows go downwards where ``height`` is negative."""
    return _bmp(struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6), width, height)


def bmp_core(width: int, height: int) -> bytes:
    """Writes a BMP with the header of OS/2 1.x."""
    return _bmp(struct.pack("<IHHHH", 12, width, height, 1, 24), width, height)


def _bmp(header: bytes, width: int, height: int) -> bytes:
    row = b"\xff" * (3 * width)
    rows = (row + bytes(-len(row) % 4)) * abs(height)
    start = 14 + len(header)
    return struct.pack("<2sIHHI", b"BM", start + len(rows), 0, 0, start) + header + rows


def webp(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"WEBP"
    for name, data in chunks:
        body += name + struct.pack("<I", len(data)) + data + b"\x00" * (len(data) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_lossy(width: int, height: int) -> tuple[bytes, bytes]:
    return b"VP8 ", b"\x10\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height)


def webp_lossless(width: int, height: int) -> tuple[bytes, bytes]:
    return b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14)


def webp_extended(width: int, height: int, flags: int = 0) -> tuple[bytes, bytes]:
    size = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    return b"VP8X", bytes([flags, 0, 0, 0]) + size


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_uri(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64_of(data)}"
