"""The fleet: who is degraded, since when, and what is to be done about it, over all sessions of all tenants."""
