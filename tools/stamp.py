"""Stamps: a step that passed is not repeated as long as nothing that it reads has changed.

`python -m tools.stamp NAME [--force] -- COMMAND ...` runs the command unless the whole tree is as it was when
the same command last succeeded under this name.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tools import course

STAMPS = course.BUILD / "stamps"
GENERATED = frozenset({"_build", "vendor", "build", "dist", "node_modules", "__pycache__", "venv"})


def write(path: Path, content: bytes) -> bool:
    """Write a file in one step, and only if its content is another; return whether it was."""
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)
    return True


def interpreter() -> str:
    """What a result depends on besides the files: the version of Python and the kind of machine."""
    return f"{sys.version} {platform.system()} {platform.machine()}"


def digest(files: Iterable[Path], *texts: str) -> str:
    """One digest of names and contents of files, of further texts and of the interpreter."""
    sha = hashlib.sha256()
    for text in (interpreter(), *texts):
        sha.update(f"{len(text.encode())}:{text}".encode())
    for path in sorted(set(files)):
        content = path.read_bytes() if path.is_file() else b"absent"
        sha.update(f"{course.short(path)}:{len(content)}:".encode() + content)
    return sha.hexdigest()


def tree(root: Path = course.ROOT) -> list[Path]:
    """Every source file: all but hidden ones and what is made here (an environment in the tree included)."""
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in GENERATED
            and not name.endswith(".egg-info")
            and not (here / name / "pyvenv.cfg").exists()
        ]
        found += [here / name for name in names if not name.startswith(".")]
    return [path for path in found if path.is_file()]


def listing(folder: Path) -> str:
    """Names, sizes and times of what a folder holds: enough to see that a file is gone or another."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)


def passed(name: str, key: str) -> bool:
    """Whether the step of this name passed with this digest."""
    path = STAMPS / name
    return path.is_file() and path.read_text(encoding="utf-8") == key


def set_passed(name: str, key: str) -> None:
    write(STAMPS / name, key.encode())


def clear(name: str) -> None:
    (STAMPS / name).unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    if "--" not in arguments or not arguments.index("--"):
        raise SystemExit("usage: python -m tools.stamp NAME [--force] -- COMMAND ...")
    cut = arguments.index("--")
    name, *options = arguments[:cut]
    command = arguments[cut + 1 :]
    key = digest(tree(), *command)
    if passed(name, key) and "--force" not in options:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime((STAMPS / name).stat().st_mtime))
        print(f"{name}: passed on {when}, and nothing has changed since (make {name} FORCE=1 runs it again)")
        return 0
    clear(name)
    code = subprocess.run(command, cwd=course.ROOT).returncode
    if code == 0 and digest(tree(), *command) == key:  # a file edited meanwhile was perhaps not seen
        set_passed(name, key)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
