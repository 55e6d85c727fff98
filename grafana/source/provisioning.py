"""What Grafana is told at its start: where the dashboards are, where Prometheus is, and whom to notify.

Grafana replaces `$NAME` in these files by the environment (`$$` is a dollar). Contact point and policy are examples to
begin with: the policy replaces the whole tree of the organization, so it is for a Grafana that has none yet.
"""

from typing import Any

from grafana.source.rules import DATASOURCE, FOLDER

DASHBOARDS = "/var/lib/grafana/dashboards/frontier-sidecar"
"""Where the dashboards are to be mounted."""


def dashboards() -> dict[str, Any]:
    """Return the provider of the dashboards: they belong to their files, and cannot be saved over."""
    return {
        "apiVersion": 1,
        "providers": [
            {
                "name": FOLDER,
                "orgId": 1,
                "folder": FOLDER,
                "type": "file",
                "disableDeletion": True,
                "allowUiUpdates": False,
                "updateIntervalSeconds": 30,
                "options": {"path": DASHBOARDS, "foldersFromFilesStructure": False},
            }
        ],
    }


def datasources() -> dict[str, Any]:
    """Return the datasource, under the uid that the alert rules name."""
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "Prometheus",
                "uid": DATASOURCE,
                "type": "prometheus",
                "access": "proxy",
                "orgId": 1,
                "url": "$FRONTIER_PROMETHEUS_URL",
                "isDefault": True,
                "editable": False,
                "jsonData": {"httpMethod": "POST", "timeInterval": "15s"},
            }
        ],
    }


def contact_points() -> dict[str, Any]:
    """Return two contact points: whom to wake, and whom to tell."""
    return {
        "apiVersion": 1,
        "contactPoints": [
            {
                "orgId": 1,
                "name": name,
                "receivers": [
                    {
                        "uid": uid,
                        "type": "webhook",
                        "settings": {"url": url, "httpMethod": "POST", "maxAlerts": "50"},
                        "disableResolveMessage": False,
                    }
                ],
            }
            for name, uid, url in (
                ("frontier-pager", "frontier-pager", "$FRONTIER_PAGER_URL"),
                ("frontier-team", "frontier-team", "$FRONTIER_TEAM_URL"),
            )
        ],
    }


def policies() -> dict[str, Any]:
    """Return the notification policy: pages to the pager, repeated; all else to the team."""
    grouped = ["grafana_folder", "alertname", "cluster", "namespace", "job"]
    return {
        "apiVersion": 1,
        "policies": [
            {
                "orgId": 1,
                "receiver": "frontier-team",
                "group_by": grouped,
                "group_wait": "30s",
                "group_interval": "5m",
                "repeat_interval": "12h",
                "routes": [
                    {
                        "receiver": "frontier-pager",
                        "object_matchers": [["severity", "=", "page"]],
                        "group_by": grouped,
                        "group_wait": "10s",
                        "group_interval": "1m",
                        "repeat_interval": "1h",
                    }
                ],
            }
        ],
    }
