"""A set of words written as one string, so that a list of many stays readable."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())
