"""Writes and reads GGUF version 3 files: the container llama.cpp loads. Only what the conversion here needs.

Layout: magic, version, tensor count, key count; keys (name, type, value); tensor entries (name, dims innermost first,
type, offset); padding to 32 bytes; tensor data, each tensor padded to 32 bytes. Little-endian throughout.
"""
import struct

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
U32, I32, F32_VALUE, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
F32, MXFP4, BF16 = 0, 39, 30
TYPE_NAMES = {F32: "F32", MXFP4: "MXFP4", BF16: "BF16"}
# type -> (values per block, bytes per block)
BLOCKS = {F32: (1, 4), BF16: (1, 2), MXFP4: (32, 17)}
_SCALARS = {U32: "<I", I32: "<i", F32_VALUE: "<f", BOOL: "<?"}


def tensor_bytes(kind, shape):
    """Bytes of a tensor of `shape` (outermost first)."""
    values, size = BLOCKS[kind]
    if shape[-1] % values:
        raise ValueError(f"rows of {shape[-1]} values do not fill blocks of {values}")
    total = size * (shape[-1] // values)
    for dim in shape[:-1]:
        total *= dim
    return total


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind, value):
    if kind == STRING:
        return _string(value)
    if kind == ARRAY:
        item, values = value
        return struct.pack("<IQ", item, len(values)) + b"".join(_value(item, v) for v in values)
    return struct.pack(_SCALARS[kind], value)


class Writer:
    """Collects keys and tensor sources, then writes the file in one pass; a tensor's bytes are made when its turn comes."""

    def __init__(self):
        self.keys, self.tensors = {}, {}

    def key(self, name, kind, value):
        self.keys[name] = (kind, value)

    def tensor(self, name, kind, shape, source):
        """`source()` returns the bytes, or yields them in pieces."""
        if name in self.tensors:
            raise ValueError(f"two tensors named {name}")
        self.tensors[name] = (kind, tuple(shape), source)

    def write(self, path):
        head = bytearray(MAGIC + struct.pack("<IQQ", VERSION, len(self.tensors), len(self.keys)))
        for name, (kind, value) in self.keys.items():
            head += _string(name) + struct.pack("<I", kind) + _value(kind, value)
        offset = 0
        for name, (kind, shape, _) in self.tensors.items():
            head += _string(name) + struct.pack("<I", len(shape))
            head += b"".join(struct.pack("<Q", dim) for dim in reversed(shape)) + struct.pack("<IQ", kind, offset)
            offset += tensor_bytes(kind, shape)
            offset += -offset % ALIGNMENT
        head += bytes(-len(head) % ALIGNMENT)
        with open(path, "wb") as f:
            f.write(head)
            for name, (kind, shape, source) in self.tensors.items():
                data = source()
                written = 0
                for piece in ((data,) if isinstance(data, (bytes, bytearray)) else data):
                    f.write(piece)
                    written += len(piece)
                if written != tensor_bytes(kind, shape):
                    raise ValueError(f"{name}: {written} bytes made, {tensor_bytes(kind, shape)} expected")
                f.write(bytes(-written % ALIGNMENT))


class _Cursor:
    def __init__(self, data, at=0):
        self.data, self.at = data, at

    def take(self, form):
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self):
        length = self.take("<Q")
        text = self.data[self.at:self.at + length].decode()
        self.at += length
        return text

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, count = self.take("<I"), self.take("<Q")
            return [self.value(item) for _ in range(count)]
        return self.take(_SCALARS[kind])


def read(path):
    """Returns (keys, tensors): {name: value} and {name: (type, shape outermost first, bytes)}."""
    with open(path, "rb") as f:
        data = f.read()
    cursor = _Cursor(data, len(MAGIC))
    if data[:len(MAGIC)] != MAGIC or cursor.take("<I") != VERSION:
        raise ValueError(f"{path}: not a GGUF version {VERSION} file")
    tensor_count, key_count = cursor.take("<Q"), cursor.take("<Q")
    keys, entries = {}, []
    for _ in range(key_count):
        name = cursor.string()
        keys[name] = cursor.value(cursor.take("<I"))
    for _ in range(tensor_count):
        name, dims = cursor.string(), cursor.take("<I")
        shape = tuple(reversed([cursor.take("<Q") for _ in range(dims)]))
        entries.append((name, shape, cursor.take("<I"), cursor.take("<Q")))
    base = cursor.at + -cursor.at % ALIGNMENT
    tensors = {name: (kind, shape, data[base + offset:base + offset + tensor_bytes(kind, shape)])
               for name, shape, kind, offset in entries}
    return keys, tensors
