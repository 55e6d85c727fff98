"""Find the standing prohibitions in what a user typed, and check whether a summary still says them.

Both are checks on text, and what comes out are *candidates*: a person has to look. How it is done:

**Finding.** Fenced code, quoted lines (`>`) and whatever stands inside the harness's own tags (`<system-reminder>`,
`<command-name>`, …: those with a hyphen or underscore) are left out; the rest is cut into clauses. A clause is a
prohibition if it

- begins (after a politeness or a conjunction) with "do not", "don't", "never", "avoid", "refrain from", or "under no
  circumstances"; or says "must not", "mustn't", "must never", "may not", "are not allowed to" of anything; or
  "should not", "shouldn't", "should never", "cannot", "can't" of "you"; or "I don't want you to";
- describes nothing ("never returns null", "never worked"), is no question, and none of the idioms that forbid nothing
  ("don't worry", "don't forget to", "never mind", …);
- names something: at least one content word is left when stop words are taken away ("don't do that" is not checkable).

Left out on purpose (better to miss one than to cry wolf): prohibitions by implication ("leave X alone", "only touch
Y", "no emojis"), other languages than English, and whether the user lifted one later.

**Survival.** A prohibition survives a summary if the summary holds it word for word (case, punctuation and spacing
aside), or if some stretch of the summary (a sentence, a list item, or two neighbouring ones) has a word of negation
and at least `SURVIVAL_SHARE` of the prohibition's content words, compared by their stems. A paraphrase with other
words counts as lost; a sentence that negates something else with the same words counts as survival.
"""

import math
import re
from collections.abc import Iterator

from sidecar.files.readers.words import words

SURVIVAL_SHARE = 0.6
"""Part of the content words (rounded up) that one stretch of the summary has to share with the prohibition."""

MAX_TEXT = 400
"""A longer clause is cut for display; it is compared whole."""

_FENCE = re.compile(r"(?:```|~~~).*?(?:```|~~~|\Z)", re.DOTALL)
_TAGGED = re.compile(r"<([a-z]+[-_][\w-]*)\b[^>]*>.*?(?:</\1>|\Z)", re.DOTALL)
_QUOTED = re.compile(r"^[ \t]*>.*$", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+|(?<=[.!?;])(?=[A-Z])")
_BULLET = re.compile(r"^\s*(?:[-*•+]|\d+[.)]|#+)\s+")
_LEAD = (
    r"(?:(?:and|but|so|please|pls|also|then|or|ever|just|however|important(?:ly)?|note|rule|reminder|warning|remember|"
    r"remember that|note that|make sure (?:you|to)|be sure to|from now on|again|ok|okay|at all times|always remember)"
    r"[\s,:]+)*"
)
_IMPERATIVE = re.compile(
    rf"(?:^|[,:(]\s*|\s[-–—]+\s*|\b(?:and|but|so|or|then|also|please)\s+){_LEAD}"
    r"(?P<ban>do not|don't|dont|never|avoid|refrain from|under no circumstances)\b\s*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_MODAL = re.compile(
    r"\b(?:must not|mustn't|must never|may not|(?:are|is) not allowed to|aren't allowed to|isn't allowed to|"
    r"(?:i|we) (?:do not|don't) want you to|"
    r"you (?:should not|shouldn't|should never|cannot|can't|can not))\b\s*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_IDIOM = re.compile(
    r"(?:worry|hesitate|mind|be afraid|be shy|bother|feel|forget|you (?:think|agree|want|need|have|see|know)|"
    r"get me wrong|know|think|see|understand|care|stop (?:until|till)|give up|lose|fail to|miss|be sorry)\b",
    re.IGNORECASE,
)
_DESCRIBING = re.compile(r"(?:\w+[^s\W]s|\w+ed|been|had|got|saw|seen|was|did|came)\b", re.IGNORECASE)
_WORD = re.compile(r"[a-z0-9_./:@-]*[a-z0-9_]", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(?:not|never|no|none|nothing|without|avoid\w*|refrain\w*|forb[ia]d\w*|prohibit\w*|disallow\w*|exclud\w*|"
    r"cannot|unchanged|untouched|off[- ]limits|read[- ]only|instead of|rather than|leave \w+ alone)\b|n't\b|\bdont\b",
    re.IGNORECASE,
)
_STOP = words(
    "a an the this that these those it its they them their there here i me my we us our you your he she his her do does"
    " did doing done be is are was were been being am have has had having will would can could shall should may might"
    " must to of in on at by for from with about into over under as and or but if then than so such any anything"
    " anyone all some every each just only also too very really please ever again now yet still when while until unless"
    " what which who whom how where why let make sure get got go going want wants need needs use using used thing"
    " things way not never no none nothing don dont t s without avoid refrain circumstances allowed up out off again"
)


def prohibitions(text: str) -> Iterator[str]:
    """Yield the prohibitions in a text that a user typed, in order, each as its clause reads."""
    text = text.replace("’", "'")
    text = _QUOTED.sub("", _TAGGED.sub("\n", _FENCE.sub("\n", text)))
    for sentence in _SENTENCE.split(text):
        sentence = _BULLET.sub("", sentence).strip()
        if not sentence or sentence.endswith("?"):
            continue
        match = _IMPERATIVE.search(sentence)
        if match is not None and (
            _IDIOM.match(match["rest"]) or (match["ban"].lower() == "never" and _DESCRIBING.match(match["rest"]))
        ):
            match = None
        match = match or _MODAL.search(sentence)
        if match is None or _IDIOM.match(match["rest"]):
            continue
        clause = " ".join(sentence[_clause_start(sentence, match) :].split())
        if content_words(match["rest"]):
            yield clause


def _clause_start(sentence: str, match: "re.Match[str]") -> int:
    """Begin an imperative at its verb, anything else (which needs its subject) with the sentence."""
    return match.start("ban") if "ban" in match.groupdict() else 0


def shown(text: str) -> str:
    """Cut a clause for display."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def content_words(text: str) -> set[str]:
    """Return the stems of the words that carry a clause's content."""
    return {_stem(word) for word in telling_words(text)}


def telling_words(text: str) -> list[str]:
    """Return the words that carry a clause's content, in order."""
    found = (word.strip("./:-@").lower() for word in _WORD.findall(text.replace("'", " ")))
    return [word for word in found if len(word) > 1 and word not in _STOP]


def _stem(word: str) -> str:
    """Take common endings off, so that "pushing" meets "push"; paths and identifiers stay as they are."""
    if not word.isalpha():
        return word
    for ending in ("ing", "ies", "ied", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]  # "committing" meets "commit"
    return word[:-1] if word.endswith("y") and len(word) > 3 else word


class SummaryText:
    """Answer of one summary which prohibitions it still says."""

    def __init__(self, text: str) -> None:
        text = text.replace("’", "'")
        self._plain = _plain(text)
        parts = [part for part in _SENTENCE.split(text) if part.strip()]
        self._parts = [(bool(_NEGATION.search(part)), content_words(part)) for part in parts]

    def says(self, prohibition: str) -> bool:
        """Tell whether the summary still says a prohibition (see the module's text for what that means)."""
        if _plain(prohibition) in self._plain:
            return True
        wanted = content_words(prohibition)
        if not wanted:
            return False
        enough = math.ceil(SURVIVAL_SHARE * len(wanted))
        before: tuple[bool, set[str]] = (False, set())
        for part in self._parts:
            negated, said = part
            if negated and len(wanted & said) >= enough:
                return True
            if (negated or before[0]) and len(wanted & (said | before[1])) >= enough:
                return True
            before = part
        return False


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[\w']+", text.lower()))
