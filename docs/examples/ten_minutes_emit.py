"""Log what an agent does, for `sidecar watch agent.jsonl`."""

from sidecar.client import SyncEmitter

with SyncEmitter.file("agent.jsonl", "session-1") as log:
    log.event("message", text="ticket-17: please deploy b")
    log.authorization("deploy-b", "ticket-17")
    log.action("deploy-b", irreversible=True)
