"""The outputs of a watch together: what is to be written, what got out, and going on after a crash or a rotation."""

from datetime import UTC, datetime

import msgspec

from sidecar.engine.fold import Outcome
from sidecar.files.outbox import Output
from sidecar.files.report import finding_text
from sidecar.files.store import Mark, State, Store
from sidecar.protocol.outputs import DeadLetter

_encode = msgspec.json.Encoder().encode


class Outlet:
    """Write findings, halts and dead letters to their outputs, each line once.

    Args:
        outputs: `findings`, `dead letters` and, if they are wanted, `halts`.
        store: counts what was written.
        text: write findings as blocks for a person.
    """

    def __init__(self, outputs: dict[str, Output], store: Store, text: bool) -> None:
        self._outputs = outputs
        self._store = store
        self._text = text
        self.pending: list[tuple[str, bytes]] = []

    def keep(self, outcome: Outcome, letters: list[DeadLetter]) -> None:
        """Take what is to be written."""
        now = datetime.now(UTC)
        for finding in outcome.findings:
            finding.detected_at = now
            text = finding_text(finding).encode() if self._text else _encode(finding)
            self.pending.append(("findings", text + b"\n"))
        if "halts" in self._outputs:
            for halt in outcome.halts:
                halt.detected_at = now
                self.pending.append(("halts", _encode(halt) + b"\n"))
        for letter in letters:
            letter.detected_at = now
            self.pending.append(("dead letters", _encode(letter) + b"\n"))

    def settle(self, before: State) -> None:
        """Make sure of what was written after the last state was saved; that state is about to be replaced."""
        for output in self._outputs.values():
            output.sync()
        self._renew(before)

    def marks(self) -> dict[str, Mark]:
        """Return where the outputs stand."""
        return {name: mark for name, output in self._outputs.items() if (mark := output.mark()) is not None}

    def write(self, state: State) -> None:
        """Write what a state that has been saved says is to be written."""
        for written, (name, line) in enumerate(state.outbox, 1):
            self._outputs[name].write(line)
            self._store.count(state.number, written)
        self._renew(state)

    def recover(self, state: State) -> None:
        """Write out what of the last outbox did not get out."""
        number, outbox, marks = state.number, state.outbox, state.marks
        counted = self._store.counted(number)
        for name, output in self._outputs.items():
            if name in marks:
                lines = [line for to, line in outbox if to == name]
                before = sum(to == name for to, _ in outbox[:counted])
                for line in output.rest(marks[name], lines, before):
                    output.write(line)
        for written, (name, line) in enumerate(outbox[counted:], counted + 1):
            if name not in marks and name in self._outputs:
                self._outputs[name].write(line)
            self._store.count(number, written)

    def _renew(self, state: State) -> None:
        """Go on in new files where those of the outputs were renamed or deleted; what was deleted is written again."""
        for name, output in self._outputs.items():
            if output.renew():
                for to, line in state.outbox:
                    if to == name:
                        output.write(line)
