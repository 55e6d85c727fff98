"""Structured logs on standard error: JSON lines, or text for people, from this program and its libraries alike."""

import logging
import sys
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor

from sidecar.protocol.outputs import Finding

Level = Literal["debug", "info", "warning", "error", "critical"]
Format = Literal["auto", "json", "pretty"]

Logger = structlog.stdlib.BoundLogger

_LIBRARIES = ("aiokafka", "aiohttp", "asyncio", "faust", "kafka", "mode")
_LEVELS = logging.getLevelNamesMapping()


def setup(
    level: Level = "info", format: Format = "auto", *, library_level: Level = "warning", stream: TextIO | None = None
) -> None:
    """Set the process's logging up; calling it again replaces what was set up before.

    Args:
        level: the least level that is logged.
        format: JSON lines or text; `auto`: text on a terminal, else JSON.
        library_level: the same for the libraries, which say much that is of no use here.
        stream: where to; None: standard error.
    """
    out = sys.stderr if stream is None else stream
    pretty = format == "pretty" or (format == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[Processor]
    if pretty:
        last = [_printable, structlog.dev.ConsoleRenderer(colors=out.isatty())]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=False)]
    handler = _Stderr() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(handlers=[handler], level=_LEVELS[level.upper()], force=True)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(_LEVELS[library_level.upper()], _LEVELS[level.upper()]))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # so that a second set-up reaches loggers that are in use
    )


def get_logger(name: str = "sidecar") -> Logger:
    """Return a logger that takes an event and its fields: `logger.info("assigned", partitions=4)`."""
    logger: Logger = structlog.stdlib.get_logger(name)
    return logger


def log_finding(logger: Logger, finding: Finding) -> None:
    """Log a finding, one line, at the level of its severity.

    The evidence quotes the session and is therefore left out, except where `debug` is logged.
    """
    fields: dict[str, Any] = {
        "rule": finding.rule,
        "severity": finding.severity,
        "disposition": finding.disposition,
        "session": finding.session_id,
        "subject": f"{finding.subject.type}:{finding.subject.id}",
        "position": finding.position,
        "finding_id": finding.finding_id,
    }
    if logger.isEnabledFor(logging.DEBUG):
        fields["evidence"] = finding.evidence
    logger.log(_LEVELS[finding.severity.upper()], "finding", **fields)


class _Stderr(logging.StreamHandler[TextIO]):
    """Write to what standard error is at that moment; it may be replaced while the program runs."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def _printable(_: Any, __: str, event: EventDict) -> EventDict:
    """Escape control characters: ids come from outside, and a terminal obeys what it is sent."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable() and key not in ("exception", "stack"):
            event[key] = repr(value)
    return event
