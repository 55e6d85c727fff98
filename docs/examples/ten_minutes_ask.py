"""Ask the guard before acting."""

from sidecar.client import SyncGuard

with SyncGuard("http://127.0.0.1:9464") as guard:
    for action in ("deploy-b", "rollback-deploy-b"):
        answer = guard.authorize("session-1", action, min_seq=3)
        print(action, "may be carried out" if answer.allowed else "is refused:")
        for reason in answer.reasons:
            print("  ", reason.detail)
