"""Dashboards and alert rules as code; `python -m grafana.source` writes what is made from it."""
