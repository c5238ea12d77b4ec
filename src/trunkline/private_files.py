"""Files with secrets: complete or absent, and never readable by others, not even briefly."""

import os
from pathlib import Path


def write_private(path: Path, text: str, *, replaces: bool = True) -> None:
    """`replaces`: the file as it was. Without it the first of two writers wins."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        if replaces:
            draft.replace(path)
        else:
            os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)
