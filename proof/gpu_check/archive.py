"""The archive of a GPU check: one file to send, with its results and a text that describes the machine."""

from __future__ import annotations

import gzip
import io
import re
import shlex
import sys
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scaleproof.proof.gpu_check.ledger import ARCHIVE_PREFIX, FILES, FOLDERS, PROVENANCE_FILE
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.validator.reconciliation import history
from scaleproof.validator.record import gpu_facts

if TYPE_CHECKING:
    # imports torch, which only ranks should do
    from scaleproof.proof.gpu_check.machine import Machine

_TOPOLOGY: Final = ("topo", "-m")
_MODE: Final = 0o644
# Of this package, which need not be installed: what is imported from its root is for users.
_VERSION: Final = str(vars(sys.modules["scaleproof"])["__version__"])


def pack(out: Path, machine: Machine, begun: str) -> Path:
    """Writes the archive of a check's results in `out`, next to them; returns its path. begun: date of the check.

    Members are in one folder, sorted, and without users and times of this machine. Locks and installed packages are left out.
    """
    words = re.sub(r"[^a-z0-9]+", "-", f"{machine['device']['devices']}x {machine['device']['name']}".lower()).strip("-")
    name = f"{ARCHIVE_PREFIX}{words}-{begun}"
    write_atomically(out / PROVENANCE_FILE, _provenance(machine).encode())
    content, begun_s = io.BytesIO(), datetime.fromisoformat(begun).replace(tzinfo=UTC).timestamp()
    # the time of compression would make each archive another one
    with gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path in _members(out):
            archive.add(path, f"{name}/{path.relative_to(out).as_posix()}", filter=partial(_plain, begun_s))
    write_atomically(out / f"{name}.tar.gz", content.getvalue())
    return out / f"{name}.tar.gz"


def _members(out: Path) -> Iterator[Path]:
    """Files of the results, sorted; without hidden ones, which are locks and unfinished files."""
    for name in sorted((history.FILE, *FILES)):
        if (out / name).is_file():
            yield out / name
    for folder in sorted(FOLDERS):
        yield from (path for path in sorted((out / folder).rglob("*")) if path.is_file() and not path.name.startswith("."))


def _plain(at_s: float, member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode, member.mtime = _MODE, at_s
    return member


def _provenance(machine: Machine) -> str:
    """Hardware and software of the machine, the command, and how its GPUs are connected, as text."""
    device = machine["device"]
    entries = {
        "scaleproof": _VERSION,
        "command": shlex.join(sys.orig_argv),
        "devices": f"{device['devices']} × {device['name']}, {device['memory_bytes'] / 2**30:.5g} GiB each",
        **machine["provenance"],
    }
    return "\n".join([*(f"{name}: {text}" for name, text in entries.items()), *_topology(), ""])


def _topology() -> Iterator[str]:
    done = gpu_facts.nvidia_smi(*_TOPOLOGY)
    if done is not None:
        yield f"\nnvidia-smi {shlex.join(_TOPOLOGY)}\n{done.stdout or done.stderr}"
