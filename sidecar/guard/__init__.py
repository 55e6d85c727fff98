"""The guard: what agents ask over HTTP before they act. Whatever goes wrong, the answer is a refusal."""
