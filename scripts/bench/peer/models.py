"""Models in the cache directory: generated presets, and their conversions to GGUF, remade when what they came from changes."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

from convert import convert


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def preset(weft_bench, cache, name, dtype="released"):
    """The directory of a generated model."""
    folder = pathlib.Path(cache) / "models" / (name if dtype == "released" else f"{name}-{dtype}")
    if not folder.exists():
        say(f"generating the model {folder.name}")
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([weft_bench, "model", "--preset", name, "--dtype", dtype, str(part)], check=True, stdout=sys.stderr)
        os.replace(part, folder)
    return folder


def _fingerprint(folder):
    """Changes with the weights (as far as sizes and times show), the configuration and the conversion itself."""
    digest = hashlib.sha256()
    here = pathlib.Path(__file__).parent
    for path in (here / "convert.py", here / "gguf.py", folder / "config.json"):
        digest.update(path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def converted(cache, folder, f32=False):
    """The GGUF file made of a model directory."""
    folder = pathlib.Path(folder)
    stem = f"{folder.name}.{'f32' if f32 else 'stored'}"
    path = pathlib.Path(cache) / "gguf" / f"{stem}-{_fingerprint(folder)}.gguf"
    if not path.exists():
        say(f"converting {folder} to GGUF{' in F32' if f32 else ''}")
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"{stem}-????????????.gguf"):
            old.unlink()
        part = path.with_suffix(".part")
        convert(folder, part, f32)
        os.replace(part, path)
    return path
