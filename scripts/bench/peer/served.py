"""Gives a GGUF file without a vocabulary a made-up one. llama-server turns every token into text, also where only ids are
exchanged, and ends without a vocabulary; the weights are copied byte for byte."""
import mmap
import os
import pathlib
import shutil
import struct

from gguf import ALIGNMENT, ARRAY, F32_VALUE, I32, MAGIC, STRING, U32, VERSION, _Cursor, _string, _value

NORMAL, CONTROL = 1, 3  # kinds of tokens


def vocabulary(size):
    """A word per id, so that each token is whole text of its own; the first three are control tokens."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"\u2581w{i}" for i in range(3, size)]
    kinds = [CONTROL] * 3 + [NORMAL] * (size - 3)
    return {"tokenizer.ggml.model": (STRING, "llama"), "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
            "tokenizer.ggml.scores": (ARRAY, (F32_VALUE, [0.0] * size)), "tokenizer.ggml.token_type": (ARRAY, (I32, kinds)),
            "tokenizer.ggml.unknown_token_id": (U32, 0), "tokenizer.ggml.bos_token_id": (U32, 1),
            "tokenizer.ggml.eos_token_id": (U32, 2)}


def _head(data):
    """The parts of a file: number of tensors, raw bytes of the keys that stay by name, vocabulary size, start of the tensor
    list, its end."""
    cursor = _Cursor(data, len(MAGIC))
    if data[:len(MAGIC)] != MAGIC or cursor.take("<I") != VERSION:
        raise ValueError(f"not a GGUF version {VERSION} file")
    tensors, count = cursor.take("<Q"), cursor.take("<Q")
    keys, size = {}, 0
    for _ in range(count):
        start = cursor.at
        name = cursor.string()
        value = cursor.value(cursor.take("<I"))
        if not name.startswith("tokenizer."):
            keys[name] = data[start:cursor.at]
        if name.endswith(".vocab_size"):
            size = value
    begin = cursor.at
    for _ in range(tensors):
        cursor.string()
        dims = cursor.take("<I")
        cursor.at += 8 * dims + 12
    return tensors, keys, size, begin, cursor.at


def write(source, target):
    """Copies `source` with a vocabulary to `target`."""
    with open(source, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        tensors, keys, size, begin, end = _head(data)
        if size < 4:
            raise ValueError(f"{source}: says no size of the vocabulary")
        extra = vocabulary(size)
        head = bytearray(MAGIC + struct.pack("<IQQ", VERSION, tensors, len(keys) + len(extra)) + b"".join(keys.values()))
        for name, (kind, value) in extra.items():
            head += _string(name) + struct.pack("<I", kind) + _value(kind, value)
        head += data[begin:end]
        head += bytes(-len(head) % ALIGNMENT)
        with open(target, "wb") as out:
            out.write(head)
            f.seek(end + -end % ALIGNMENT)
            shutil.copyfileobj(f, out, 1 << 24)


def served(path):
    """The file with a vocabulary beside the one without, made when it is missing; older ones of the same model go."""
    path = pathlib.Path(path)
    target = path.with_name("served-" + path.name)
    if not target.exists():
        stem = target.name.rsplit("-", 1)[0]
        for old in path.parent.glob(f"{stem}-????????????.gguf"):
            old.unlink()
        part = target.with_suffix(".part")
        write(path, part)
        os.replace(part, target)
    return target
