"""Read what deployments say: commands as the program's own parser takes them, variables as its settings do."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from sidecar.cli import cli
from sidecar.config import Settings
from sidecar.config.fields import keys


def parse(arguments: Sequence[str]) -> str:
    """Return the name of the command that these arguments call; nothing is run.

    Raises:
        click.UsageError: the program would not take them.
    """
    context = cli.make_context("sidecar", list(arguments))
    name, command, rest = cli.resolve_command(context, [*context._protected_args, *context.args])
    assert name is not None and command is not None
    if isinstance(command, click.Group) and not rest:
        return name
    while isinstance(command, click.Group) and rest:
        # A group may be a command itself, with options of its own.
        context = command.make_context(name, list(rest), parent=context)
        rest = [*context._protected_args, *context.args]
        if not rest:
            return name
        inner, command, rest = command.resolve_command(context, rest)
        name = f"{name} {inner}"
    assert command is not None
    command.make_context(name, list(rest), parent=context)
    return name


def unknown_variables(environment: Mapping[str, object]) -> list[str]:
    """Return those variables that begin as the sidecar's do, and belong to no setting."""
    known = {key.variable for key in keys(Settings)} | {"SIDECAR_CONFIG"}
    return sorted(name for name in environment if name.startswith("SIDECAR_") and name not in known)


def loaded(monkeypatch: object, environment: Mapping[str, object], config: Path | None = None) -> Settings:
    """Load the settings as a process with this environment would."""
    setenv = monkeypatch.setenv  # type: ignore[attr-defined]
    for name, value in environment.items():
        if name.startswith("SIDECAR_"):
            setenv(name, str(value))
    return Settings.load(config)
