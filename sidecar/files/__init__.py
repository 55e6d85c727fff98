"""JSONL files as input: reading lines, `check`, `watch`, and readers for the frameworks' own session formats."""
