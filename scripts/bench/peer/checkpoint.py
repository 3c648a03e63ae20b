"""Reads a checkpoint directory: config.json and safetensors shards. Tensors come as plain bytes; no NumPy needed."""
import json
import mmap
import pathlib
import struct

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1}


class Tensor:
    """Name, dtype and shape of a stored tensor; `data()` copies its bytes out of the mapped shard."""

    def __init__(self, name, dtype, shape, view):
        self.name, self.dtype, self.shape, self._view = name, dtype, tuple(shape), view

    def data(self):
        return bytes(self._view)


def _shards(folder):
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    return sorted(p.name for p in folder.glob("*.safetensors"))


def _read_shard(path):
    with open(path, "rb") as f:
        mapped = memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
    (length,) = struct.unpack_from("<Q", mapped, 0)
    header = json.loads(bytes(mapped[8:8 + length]))
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        count = ITEM_BYTES[entry["dtype"]]
        for dim in entry["shape"]:
            count *= dim
        if end - begin != count or end > len(mapped):
            raise ValueError(f"{path.name}: {name} has {end - begin} bytes, its shape needs {count}")
        tensors[name] = Tensor(name, entry["dtype"], entry["shape"], mapped[begin:end])
    return tensors


class Checkpoint:
    """`config` is the text configuration, `tensors` maps names without the `language_model.` prefix to tensors."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.multimodal = "text_config" in raw
        self.config = raw["text_config"] if self.multimodal else raw
        self.tensors = {}
        for name in _shards(folder):
            for key, tensor in _read_shard(folder / name).items():
                self.tensors[key[len("language_model."):] if key.startswith("language_model.") else key] = tensor
        if not self.tensors:
            raise ValueError(f"{folder}: no safetensors files")


def write_safetensors(path, tensors):
    """Writes {name: (dtype, shape, bytes)}; used by the tests."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)
