"""What the node keeps as one JSON file: read, or the default where there is none."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from protocol.errors import ResourceError

Kept = TypeVar("Kept", bound=BaseModel)


def read(path: Path, model: type[Kept], otherwise: str) -> Kept:
    """The file, checked. `otherwise` says what can be done besides putting a damaged one back from a copy.

    Raises:
        ResourceError: it cannot be read, or is damaged; then nobody may be let in.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return model()
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError:  # its message would quote the file
        raise ResourceError(f"{path} is damaged: put it back from a copy, or {otherwise}") from None
