"""An independent judge of sessions, written from the protocol's text alone, and sessions to try it on."""
