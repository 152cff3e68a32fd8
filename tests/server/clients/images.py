"""Small pictures, made here."""
import base64
import struct
import zlib


def png(red, green, blue, width=64, height=48):
    """A PNG of one colour."""
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    row = b"\0" + bytes((red, green, blue)) * width
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * height)) +
            chunk(b"IEND", b""))


def base64_of(data):
    return base64.b64encode(data).decode()


def data_url(data, kind="png"):
    return f"data:image/{kind};base64," + base64_of(data)
