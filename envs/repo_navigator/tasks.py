"""Task builders: benchmark rows, and bugs planted in any Python project. Writes JSONL for a data source.

python -m envs.repo_navigator.tasks planted bundled:ledger out.jsonl --count 20
python -m envs.repo_navigator.tasks planted sdist:requests-2.32.3.tar.gz out.jsonl --count 50
python -m envs.repo_navigator.tasks swe SWE-bench.jsonl out.jsonl --clones folder/of/clones
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import tarfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from envs.repo_navigator.backend import CachedBackend, DefinitionBackend
from envs.repo_navigator.ceiling import Reached, ceiling, reach
from envs.repo_navigator.engines import ENGINES, make_backend
from envs.repo_navigator.entry import choose_entry
from envs.repo_navigator.gold import (
    FilePatch,
    gold_locations,
    is_source_path,
    overlay_of,
    parse_patch,
    reversed_patch,
)
from envs.repo_navigator.mutate import Mutation, pick
from envs.repo_navigator.repositories import open_snapshot
from envs.repo_navigator.snapshot import MAX_FILE_BYTES, Snapshot, SnapshotStore
from envs.repo_navigator.source import read_source

Row = dict[str, Any]
_CONSOLE = Console(stderr=True)
app = typer.Typer(help="Make RepoNavigator tasks.", no_args_is_help=True, pretty_exceptions_enable=False)


def swe_rows(
    rows: Iterable[Mapping[str, Any]], clones: Path, store: SnapshotStore, *, planted: bool | None = None
) -> Iterator[tuple[Row | None, str]]:
    """Tasks from SWE-bench, SWE-Gym and SWE-smith rows: (task, "") or (None, why it is dropped).

    Args:
        clones: folder with local git clones named `owner__name`.
        planted: whether `patch` plants the bug (SWE-smith) instead of fixing it; told from the row's
            repository when not given. The code shown is then the post-image, built here from the
            clean commit: the benchmark's own branches may have lost tests in a later commit.
    """
    for raw in rows:
        issue = str(raw.get("problem_statement") or "").strip()
        if not issue:
            yield None, "empty problem statement"
            continue
        repo = str(raw["repo"])
        plants = repo.startswith("swesmith/") if planted is None else planted
        name = repo.split("/", 1)[-1] if plants else repo.replace("/", "__")
        clone = clones / name
        commit = str(raw.get("base_commit") or ("main" if plants else ""))
        if not clone.is_dir() or not commit:
            yield None, f"no clone {clone.name}"
            continue
        yield _swe_row(raw, issue, clone, commit, store, plants)


def _swe_row(
    raw: Mapping[str, Any], issue: str, clone: Path, commit: str, store: SnapshotStore, plants: bool
) -> tuple[Row | None, str]:
    spec = f"git:{clone.resolve()}@{commit}"
    try:
        files = parse_patch(str(raw["patch"]))
        snapshot = store.from_git(clone, commit)
        overlay: Mapping[str, str] = overlay_of(files, _reader(snapshot)) if plants else {}
        if plants:
            snapshot = store.from_git(clone, commit, overlay=overlay)
            files = reversed_patch(files)
    except ValueError as error:
        return None, str(error)
    return _row(str(raw["instance_id"]), issue, spec, overlay, snapshot, files)


def _row(
    task_id: str, issue: str, spec: str, overlay: Mapping[str, str], snapshot: Snapshot, files: list[FilePatch]
) -> tuple[Row | None, str]:
    gold = gold_locations(files, _reader(snapshot))
    if not gold:
        return None, "no gold location in the code"
    return _task(task_id, issue, spec, overlay, snapshot, gold), ""


def _task(
    task_id: str, issue: str, spec: str, overlay: Mapping[str, str], snapshot: Snapshot, gold: Iterable[str]
) -> Row:
    locations = sorted(gold)
    return {
        "task_id": task_id,
        "prompt": issue,
        "issue": issue,
        "repository": spec,
        "overlay": dict(overlay),
        "snapshot_id": snapshot.snapshot_id,
        "gold": locations,
        "gold_files": sorted({g.partition("::")[0] for g in locations}),
    }


def _reader(snapshot: Snapshot) -> Any:
    def read(path: str) -> str | None:
        file = snapshot.root / path
        return read_source(file).text if file.is_file() else None

    return read


def planted_rows(spec: str, store: SnapshotStore, *, count: int, seed: int = 0) -> list[Row]:
    """Tasks with one small bug each, planted in functions of a project's own code.

    The issue tells what goes wrong and where a user would notice it (a function that uses the broken
    one, when there is one), never the name or file of the broken function.
    """
    clean = open_snapshot({"repository": spec}, store)
    rng = random.Random(seed)
    paths = [p for p in clean.files if is_source_path(p) and (clean.root / p).stat().st_size < MAX_FILE_BYTES // 4]
    users = _users(clean)
    rows: dict[str, Row] = {}
    for _ in range(count * 10):
        if len(rows) == count or not paths:
            break
        path = rng.choice(paths)
        mutation = pick(read_source(clean.root / path), rng)
        if mutation is None:
            paths.remove(path)
            continue
        overlay = {path: mutation.text}
        buggy = store.from_folder(clean.root, overlay=overlay)
        gold = f"{path}::{mutation.definition.qualname}"
        task_id = f"{spec.rpartition('/')[2]}-{buggy.snapshot_id[:12]}"
        rows[task_id] = _task(task_id, _issue(mutation, path, users, rng), spec, overlay, buggy, [gold])
    return list(rows.values())


Users = Mapping[str, Collection[tuple[str, str]]]


def _users(snapshot: Snapshot) -> Users:
    """By name: the functions (file, qualified name) whose code uses it."""
    users: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in filter(is_source_path, snapshot.files):
        source = read_source(snapshot.root / path)
        for name in source.names():
            for use in source.occurrences(name):
                owner = source.innermost(use.line)
                if owner is not None and owner.kind == "function" and owner.qualname.rpartition(".")[2] != name:
                    users[name].add((path, owner.qualname))
    return users


def _issue(mutation: Mutation, path: str, users: Users, rng: random.Random) -> str:
    name = mutation.definition.qualname.rpartition(".")[2]
    elsewhere = sorted(user for user in users.get(name, ()) if user[0] != path)
    if elsewhere:
        where, user = rng.choice(elsewhere)
        place = f"I noticed it when using `{user}` of {where}."
    else:
        place = "I noticed it in everyday use; I do not know which part is to blame."
    return f"Wrong behaviour since the last change: {mutation.symptom}.\n\n{place}"


async def with_ceilings(
    rows: Iterable[Row], store: SnapshotStore, backend: DefinitionBackend, *, clean: Snapshot | None = None
) -> list[Row]:
    """Adds `ceiling` to each task and drops those of which nothing can be reached.

    Args:
        clean: of planted bugs, the project before them. Chains are searched there, once for all tasks
            that start from the same file: the bug is inside its own function, and no shortest chain
            to a function leads through that function's body.
    """
    kept = []
    reached: dict[tuple[str, str], Reached] = {}
    for row in rows:
        snapshot = open_snapshot(row, store)
        try:
            entry = choose_entry("auto", row["issue"], snapshot, row["gold_files"])
        except ValueError:  # every file that could be shown is part of the answer
            continue
        searched = clean or snapshot
        key = (searched.snapshot_id, entry.path)
        if key not in reached:
            reached[key] = await reach(searched, entry.path, backend)
        limit = ceiling(reached[key], snapshot, row["gold"])
        if limit.reachable_unlimited > 0:
            kept.append({**row, "ceiling": {**dataclasses.asdict(limit), "entry": entry.path, "policy": entry.policy}})
    return kept


def write_rows(rows: Iterable[Row], out: Path) -> None:
    """Writes JSON lines, one task each."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in rows), encoding="utf-8")


Engine = Annotated[str, typer.Option(help=f"What finds definitions for the ceiling: {', '.join(ENGINES)}.")]


def _finish(rows: list[Row], out: Path, store: SnapshotStore, engine: str, clean: Snapshot | None = None) -> None:
    backend = CachedBackend(make_backend(engine))
    try:
        kept = asyncio.run(
            with_ceilings(track(rows, "searching what can be reached", console=_CONSOLE), store, backend, clean=clean)
        )
    finally:
        backend.close()
    write_rows(kept, out)
    mean = sum(r["ceiling"]["best_dice"] for r in kept) / max(len(kept), 1)
    typer.echo(f"{len(kept)} tasks in {out}; {len(rows) - len(kept)} dropped as unreachable; best Dice {mean:.3f}")


@contextmanager
def _told() -> Iterator[None]:
    """A missing archive, a wrong repository or a missing package is one line, not a traceback."""
    try:
        yield
    except (ValueError, OSError, tarfile.TarError, ModuleNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def planted(
    repository: Annotated[str, typer.Argument(help="bundled:NAME, folder:PATH, git:PATH@COMMIT or sdist:FILE.")],
    out: Path,
    count: Annotated[int, typer.Option(min=1, help="Tasks to plant; fewer are kept when some cannot be reached.")] = 20,
    seed: int = 0,
    engine: Engine = "jedi",
) -> None:
    """Plant bugs in a project."""
    store = SnapshotStore()
    with _told():
        with _CONSOLE.status(f"planting bugs in {repository}"):
            rows = planted_rows(repository, store, count=count, seed=seed)
            clean = open_snapshot({"repository": repository}, store)
        _finish(rows, out, store, engine, clean)


@app.command()
def swe(
    rows: Annotated[str, typer.Argument(help="JSONL or Parquet file, or a hub id.")],
    out: Path,
    clones: Annotated[Path, typer.Option(help="Folder with git clones named owner__name.")],
    split: str = "test",
    engine: Engine = "jedi",
) -> None:
    """Convert SWE-bench, SWE-Gym or SWE-smith rows."""
    from rl.config.schema import SourceConfig
    from rl.data.sources import read_rows

    store = SnapshotStore()
    made: list[Row] = []
    dropped: Counter[str] = Counter()
    with _told():
        read = track(read_rows(SourceConfig(path=rows, split=split)), "reading rows", console=_CONSOLE)
        for row, why in swe_rows(read, clones, store):
            if row is None:
                dropped[why] += 1
            else:
                made.append(row)
        for why, number in dropped.most_common():
            typer.echo(f"dropped {number}: {why}")
        _finish(made, out, store, engine)


if __name__ == "__main__":
    app()
