"""Draw the dashboards, to be looked at: `python -m tests.ops.pictures FOLDER`."""
