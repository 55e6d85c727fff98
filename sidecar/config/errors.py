"""The one exception of the settings."""

from collections.abc import Iterable


class SettingsError(Exception):
    """Say what is wrong with the settings: one line a problem, each naming the key and where its value came from.

    Args:
        problems: one sentence each, without the values of secrets.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems: tuple[str, ...] = problems

    @classmethod
    def of(cls, problems: Iterable[str]) -> "SettingsError":
        """Make one of several problems, each said once."""
        return cls(*dict.fromkeys(problems))
