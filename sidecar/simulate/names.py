"""The fleet's vocabulary: who works for whom, what they say, what they touch."""

TENANTS = ("acme", "globex", "initech")
AGENTS = ("planner", "deployer", "researcher", "support")

MODELS = {"steady-large": (0.985, 0.999), "quick-medium": (0.97, 0.985), "tiny-small": (0.955, 0.97)}
"""The summarizer models, with the recall per node that each reaches.

Even the worst keeps a tree of three levels above the stricter floor (0.955 to the power of 3 is 0.87), so
that a healthy session is healthy whichever model summarizes it.
"""
LOSSY_MODELS = ("steady-large", "quick-medium", "quick-medium", *("tiny-small",) * 4)
"""Who is behind a summarizer's fault: the worse the model, the likelier."""

NARRATIVE_RECALL = (0.9, 0.97)
"""Recall per node where the floor is 0.60: 0.9 over three levels is 0.73."""

BUDGETS = {1: (8000, 2000), 2: (2000, 512), 3: (512, 128)}
"""Input and output budget by level, in tokens."""

CONSTRAINT_LOSS = (0.29, 0.37, 0.34)
"""Where a prohibition is lost: 71% reach a leaf and 34% a section, so 29% and 37% go there; the rest at the root."""

TEXTS = (
    "looked at the failing job and its last three runs",
    "the queue drains again, latency is back under 40 ms",
    "comparing the schema of the replica with the primary",
    "next: verify the backup before anything is touched",
    "the user asks for a status of the rollout so far",
    "two of the five shards are done, the third is running",
    "reading the on-call notes of last week for the cause",
    "the canary holds, error rate 0.02 % over ten minutes",
    "opened the ticket and linked the two earlier ones",
    "waiting for the approval of the change board",
    "the index build took 14 minutes, as estimated",
    "retrying with a smaller batch after the timeout",
)
OPAQUE = ("message", "message", "message", "tool_call", "thought")

ACTIONS = ("migrate", "deploy", "rotate", "purge", "refund", "failover", "release", "archive")
CALLS = ("create-volume", "open-ticket", "start-job", "lease-host", "upload", "query", "fetch")
THINGS = ("config", "dump", "report", "endpoint", "threshold", "image", "invoice", "ledger")

PROHIBITIONS = (
    "do not touch the billing table",
    "never restart the primary during business hours",
    "do not rotate the credential after step 4",
    "no customer data in tickets",
)
PREFERENCES = ("always write the change number", "answer in one paragraph", "use the staging cluster first")

INSTRUCTIONS = (
    "Keep every identifier, error code and threshold.",
    "Compress without leaving anything out.",
    "Shorten the turns below; keep names and numbers verbatim.",
)
RANKING_INSTRUCTIONS = (
    "Summarize for task continuity.",
    "Prioritise what the open goal needs.",
    "Focus on the current step.",
)
