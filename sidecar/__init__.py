"""Judge the context compactions of LLM agents as they happen."""

__version__ = "0.1.0"
