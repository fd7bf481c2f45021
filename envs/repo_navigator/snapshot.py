"""Immutable copies of a repository's Python files, identified by their content.

A snapshot holds regular `.py` and `.pyi` files and the project's metadata, nothing else: no native
code, no links, no special files, nothing over the size limit. What an episode sees therefore cannot
lead out of it, and two snapshots with the same id are the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

MAX_FILE_BYTES = 1_000_000
"""Larger files make the resolver take seconds and hundreds of megabytes."""
MAX_PATH_CHARS = 255
_KEEP_SUFFIXES = (".py", ".pyi")
_KEEP_NAMES = ("pyproject.toml", "setup.cfg", "py.typed")
_SKIP_FOLDERS = frozenset({".git", ".hg", ".tox", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache"})


class BadPath(ValueError):
    """A path that names no file of the snapshot; the text is for the policy."""


@dataclass(frozen=True)
class Snapshot:
    """A folder that no one writes to."""

    root: Path
    """Real path."""
    snapshot_id: str

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Relative posix paths of the Python files, sorted."""
        found = (p for p in self.root.rglob("*") if p.suffix in _KEEP_SUFFIXES and p.is_file())
        return tuple(sorted(p.relative_to(self.root).as_posix() for p in found))

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for file in self.files:
            names.setdefault(file.rpartition("/")[2], []).append(file)
        return names

    @cached_property
    def source_roots(self) -> tuple[str, ...]:
        """Folders that imports start from: declared ones, `src`, `lib`, then the root itself."""
        declared = [*_declared_roots(self.root), "src", "lib"]
        roots = [r for r in dict.fromkeys(declared) if r not in ("", ".") and (self.root / r).is_dir()]
        roots = [r for r in roots if not (self.root / r / "__init__.py").exists()]
        return (*roots, "")

    def locate(self, path: str) -> tuple[str, Path]:
        """The normalised relative path and the real file of a path that the policy wrote.

        Raises:
            BadPath: it is absolute, leaves the repository, or names no readable Python file.
        """
        if not path or "\0" in path or "\\" in path or len(path) > MAX_PATH_CHARS:
            raise BadPath("a file path is relative to the repository, with / between its parts")
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or path.startswith("~"):
            raise BadPath(f"{path!r} leaves the repository; give a path relative to its root")
        name = pure.as_posix()
        if pure.suffix not in _KEEP_SUFFIXES:
            raise BadPath(f"{name!r} is not a Python file")
        real = self.root / pure
        try:
            inside = real.resolve(strict=True).is_relative_to(self.root)
            info = real.lstat()
        except (OSError, RuntimeError):  # missing, a loop, a name too long
            raise BadPath(f"there is no file {name!r}{self._nearest(pure.name)}") from None
        if not inside or not stat.S_ISREG(info.st_mode):
            raise BadPath(f"{name!r} is not a regular file of the repository")
        if info.st_size > MAX_FILE_BYTES:
            raise BadPath(f"{name!r} is too large to analyse ({info.st_size} bytes)")
        return name, real

    def _nearest(self, name: str) -> str:
        same = self._by_name.get(name, ())[:3]
        return f"; did you mean {' or '.join(same)}?" if same else ""


class SnapshotStore:
    """Snapshots under one folder. Several processes may share it: a snapshot appears whole, by rename."""

    def __init__(self, folder: Path | str | None = None) -> None:
        default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hone" / "snapshots"
        self.folder = Path(folder).expanduser() if folder else default
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def known(self, snapshot_id: str) -> Snapshot | None:
        """A snapshot made earlier, if this store has it."""
        target = self.folder / snapshot_id
        return Snapshot(target.resolve(), snapshot_id) if snapshot_id.isalnum() and target.is_dir() else None

    def from_folder(self, folder: Path | str, *, overlay: Mapping[str, str] | None = None) -> Snapshot:
        """Copies a folder; `overlay` replaces files (relative path -> text), as a planted bug does."""
        folder = Path(folder).expanduser().resolve()
        if not folder.is_dir():
            raise FileNotFoundError(f"no repository folder {folder}")
        contents = {name: path.read_bytes() for name, path in _keepable(folder)}
        return self._store(contents, overlay)

    def from_files(self, files: Mapping[str, str], *, overlay: Mapping[str, str] | None = None) -> Snapshot:
        """Makes a repository from texts by relative path."""
        return self._store({name: text.encode() for name, text in files.items()}, overlay)

    def from_git(self, repository: Path | str, commit: str, *, overlay: Mapping[str, str] | None = None) -> Snapshot:
        """The tree of a commit of a local clone; its working tree is not looked at.

        Raises:
            ValueError: git does not know the commit.
        """
        if commit.startswith("-"):
            raise ValueError(f"{commit!r} is no commit")
        with tempfile.TemporaryDirectory() as temporary:
            archive = Path(temporary) / "tree.tar"
            command = ["git", "-C", str(repository), "archive", "--format=tar", "-o", str(archive), commit]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                raise ValueError(f"{repository}: cannot read commit {commit}: {done.stderr.strip()}")
            return self._store(_tar_contents(archive, strip=0), overlay)

    def from_sdist(self, archive: Path | str, *, overlay: Mapping[str, str] | None = None) -> Snapshot:
        """A source distribution (`.tar.gz`); its top folder is left away. Nothing of it is run."""
        return self._store(_tar_contents(Path(archive), strip=1), overlay)

    def _store(self, contents: dict[str, bytes], overlay: Mapping[str, str] | None) -> Snapshot:
        for name, text in (overlay or {}).items():
            contents[name] = text.encode()
        contents = {n: c for n, c in contents.items() if _keep_name(n) and len(c) <= MAX_FILE_BYTES}
        if not any(n.endswith(_KEEP_SUFFIXES) for n in contents):
            raise ValueError("the repository has no Python files")
        digest = hashlib.blake2b(digest_size=12)
        for name in sorted(contents):
            digest.update(f"{name}\0{len(contents[name])}\0".encode())
            digest.update(contents[name])
        snapshot_id = digest.hexdigest()
        target = self.folder / snapshot_id
        if not target.is_dir():
            self._write(contents, target)
        return Snapshot(target.resolve(), snapshot_id)

    def _write(self, contents: Mapping[str, bytes], target: Path) -> None:
        aside = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
        try:
            for name, content in contents.items():
                path = aside / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(0o444)
            aside.chmod(0o755)
            aside.rename(target)
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
            if not target.is_dir():  # another process may have been first: its copy is the same
                raise


def _keep_name(name: str) -> bool:
    pure = PurePosixPath(name)
    safe = not pure.is_absolute() and ".." not in pure.parts and not _SKIP_FOLDERS & set(pure.parts)
    return safe and (pure.suffix in _KEEP_SUFFIXES or pure.name in _KEEP_NAMES)


def _keepable(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files to copy. A link is followed only to a regular file inside the folder."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in _SKIP_FOLDERS and not Path(where, f).is_symlink())
        for name in sorted(names):
            path = Path(where, name)
            relative = path.relative_to(folder).as_posix()
            if not _keep_name(relative):
                continue
            try:
                real = path.resolve(strict=True)
                info = real.stat()
            except (OSError, RuntimeError):  # a dangling link or a loop
                continue
            if real.is_relative_to(folder) and stat.S_ISREG(info.st_mode) and info.st_size <= MAX_FILE_BYTES:
                yield relative, real


def _tar_contents(archive: Path, strip: int) -> dict[str, bytes]:
    contents = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = "/".join(PurePosixPath(member.name).parts[strip:])
            if name and member.isreg() and member.size <= MAX_FILE_BYTES and _keep_name(name):
                handle = tar.extractfile(member)
                assert handle is not None
                contents[name] = handle.read()
    return contents


def _declared_roots(root: Path) -> list[str]:
    """`package_dir` of setup.cfg and of `[tool.setuptools]`, and `where` of its package finder."""
    found: list[str] = []
    try:
        with (root / "pyproject.toml").open("rb") as handle:
            setuptools = tomllib.load(handle).get("tool", {}).get("setuptools", {})
        packages = setuptools.get("packages", {})
        found += [str(v) for v in setuptools.get("package-dir", {}).values()]
        found += [str(w) for w in packages.get("find", {}).get("where", [])] if isinstance(packages, dict) else []
    except (OSError, ValueError, AttributeError):  # absent, or not what setuptools would accept
        pass
    parser = ConfigParser()
    try:
        parser.read(root / "setup.cfg", encoding="utf-8")
        lines = parser.get("options", "package_dir", fallback="").splitlines()
        found += [line.partition("=")[2].strip() for line in lines if "=" in line]
    except (ConfigParserError, UnicodeDecodeError):
        pass
    return [f for f in found if f and not PurePosixPath(f).is_absolute() and ".." not in PurePosixPath(f).parts]
