"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def draft(path: Path) -> Path:
    """Where a file lies until it is whole: beside path, so that it can take its place."""
    return path.with_name(f".{path.name}.{os.getpid()}")


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """Write a draft beside path, which takes the place of path when the block has ended well.

    A reader sees the old file or the new one, never a part. If the block fails or the disk is full, the draft
    goes away and what was there stays; a problem of the disk is an OSError that names path.
    """
    new = draft(path)
    try:
        with open(new, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # on the disk before it gets its name
        new.replace(path)
    except (OSError, RuntimeError) as problem:
        # torch.save hides the problem of the disk behind one of its own
        cause = problem if isinstance(problem, OSError) else problem.__context__
        if not isinstance(cause, OSError):
            raise
        words = f"not written ({cause.strerror}); what was there before is unchanged"
        raise OSError(cause.errno, words, str(path)) from problem
    finally:
        new.unlink(missing_ok=True)
