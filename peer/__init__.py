"""The volunteer, the datacenter replica, the laboratory, and the `hetpeer` command."""


def version() -> str:
    """Hetpeer's version as it is installed; `pyproject.toml` has it."""
    from importlib import metadata

    try:
        return metadata.version("hetpeer")
    except metadata.PackageNotFoundError:
        return "not installed"
