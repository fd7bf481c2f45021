"""Rows from files, datasets and generators. A row is a plain dict; errors name file and line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rl.config.errors import ConfigError, nearest
from rl.config.schema import SourceConfig

Row = dict[str, Any]


def read_rows(source: SourceConfig) -> list[Row]:
    """All rows of a source, at most ``source.size``.

    Raises:
        ConfigError: missing or empty source, or a row that cannot be read.
    """
    rows = list(_limited(_reader(source), source.size))
    if not rows:
        raise ConfigError(f"data source {source.path!r} has no rows")
    return rows


def source_name(source: SourceConfig) -> str:
    """The name in metrics."""
    if source.name:
        return source.name
    return source.path.split(":", 1)[1] if source.path.startswith("reasoning_gym:") else Path(source.path).stem


def _reader(source: SourceConfig) -> Iterator[Row]:
    path = source.path
    if path.startswith("reasoning_gym:"):
        return _reasoning_gym(source)
    file = Path(path).expanduser()
    readers: dict[str, Callable[[Path], Iterator[Row]]] = {
        ".jsonl": _jsonl,
        ".ndjson": _jsonl,
        ".json": _json,
        ".parquet": _parquet,
    }
    if file.suffix in readers and not file.is_dir():
        if not file.is_file():
            raise ConfigError(f"data source: no file {file}{_neighbours(file)}")
        return readers[file.suffix](file)
    return _dataset(source, file)


def _limited(rows: Iterator[Row], size: int | None) -> Iterator[Row]:
    for i, row in enumerate(rows):
        if size is not None and i >= size:
            return
        yield row


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise ConfigError(f"{path}:{number}: not UTF-8 (byte {error.start} of the line)") from error
            except json.JSONDecodeError as error:
                raise ConfigError(f"{path}:{number}: not valid JSON: {error.msg} at column {error.colno}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"{path}:{number}: a row must be a JSON object, not {type(row).__name__}")
            yield row


def _json(path: Path) -> Iterator[Row]:
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}:{error.lineno}: not valid JSON: {error.msg} (one object a line? call it .jsonl)"
        ) from error
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise ConfigError(f"{path}: must be a list of objects")
    yield from content


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path} is not a readable Parquet file: {error}") from error
    yield from table.to_pylist()


def _dataset(source: SourceConfig, folder: Path) -> Iterator[Row]:
    import datasets

    try:
        if (folder / "dataset_info.json").is_file() or (folder / "dataset_dict.json").is_file():
            loaded = datasets.load_from_disk(str(folder))
        elif folder.is_dir():
            loaded = datasets.load_dataset(str(folder), split=source.split, **source.options)
        elif source.path.startswith((".", "/", "~")):
            raise ConfigError(f"data source: no file or folder {folder}{_neighbours(folder)}")
        else:
            loaded = datasets.load_dataset(source.path, split=source.split, **source.options)
    except ConfigError:
        raise
    except Exception as error:  # the library raises dozens of kinds for a missing or broken dataset
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"data source {source.path!r} (split {source.split!r}): {first}") from error
    if isinstance(loaded, dict):
        if source.split not in loaded:
            raise ConfigError(f"data source {source.path!r} has no split {source.split!r}; it has {sorted(loaded)}")
        loaded = loaded[source.split]
    yield from (dict(row) for row in loaded)


def _reasoning_gym(source: SourceConfig) -> Iterator[Row]:
    name = source.path.split(":", 1)[1]
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError("reasoning_gym sources need the extra: pip install 'hone-rl[reasoning-gym]'") from error
    if name not in DATASETS:
        raise ConfigError(f"reasoning_gym has no task family {name!r}{nearest(name, DATASETS)}")
    try:
        dataset = reasoning_gym.create_dataset(name, size=source.size or 1000, seed=source.seed, **source.options)
    except (TypeError, AssertionError, ValueError) as error:
        raise ConfigError(f"reasoning_gym:{name}: options {source.options}: {error}") from error
    for entry in dataset:
        yield {
            "question": entry["question"],
            "answer": entry["answer"],
            "metadata": entry["metadata"],
            "reasoning_gym": name,
        }


def _neighbours(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" (and no folder {folder})"
    return nearest(path.name, [p.name for p in folder.iterdir()])
