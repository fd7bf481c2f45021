"""Mathematical answers: found in a text, and compared with the gold answer.

`grade` decides by value, not by spelling: `docs/rewards.md` has the conventions. Exact arithmetic where
the answer is rational, two precisions of mpmath where it is not (`rewards.math_expr`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rewards.contract import text_of
from rewards.math_expr import Node, ParseError, TooLarge, equal, parse, proportional, signs, symbols

MAX_TEXT = 100_000
MAX_ANSWER = 20_000
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_LINK = re.compile(r"[\s$.]*(?:,|;|/|or|and|\\text\{\s*(?:or|and)\s*\})?[\s$]*(?:or|and)?[\s$]*")
_SAID = re.compile(r"(?:final\s+)?answer\s*(?:is|:|=)\s*:?\s*", re.I)


def math_answer(completions: Sequence[Any], answer: Sequence[Any], **columns: Any) -> list[float | None]:
    """1 where the completion's final answer equals the gold answer; ``None`` where the row has no gold."""
    return [None if gold is None else grade(text_of(c), str(gold)) for c, gold in zip(completions, answer, strict=True)]


def grade(text: str, gold: str) -> float | None:
    """1.0 where ``text`` ends in an answer equal to ``gold``, else 0.0; ``None`` for an empty gold answer."""
    wanted = find_answer(gold) if _BOX.search(gold) or "####" in gold else gold
    if not wanted or not wanted.strip():
        return None
    found = find_answer(text[-MAX_TEXT:])
    if found is None or not found.strip() or len(found) > MAX_ANSWER:
        return 0.0
    a, b = clean(wanted), clean(found)
    if a == b:
        return 1.0
    try:
        return float(same(read(a), read(b)))
    except RecursionError:
        return 0.0


def find_answer(text: str) -> str | None:
    """The final answer of a text, as written.

    The last box counts; boxes joined by a comma, "and" or "or" are one list. An unclosed or empty last
    box is no answer. Without boxes: what follows the last ``####``, then "answer is", else the text
    itself when it is one short line.
    """
    text = text.rpartition("</think>")[2] if "</think>" in text else text
    boxes = list(_BOX.finditer(text))
    if boxes:
        contents: list[str] = []
        end = None
        for match in boxes:
            close = _closing(text, match.end())
            if close is None:
                return None
            if end is not None and not _LINK.fullmatch(text, end, match.start()):
                contents = []
            content = text[match.end() : close].strip()
            if content not in contents:
                contents.append(content)
            end = close + 1
        return ", ".join(contents) or None
    if re.search(r"\\(?:boxed|fbox)", text):
        return None
    if "####" in text:
        return text.rpartition("####")[2].strip().splitlines()[0] if text.rpartition("####")[2].strip() else None
    said = list(_SAID.finditer(text))
    if said:
        return _sentence(text[said[-1].end() :])
    stripped = text.strip()
    return stripped if stripped and "\n" not in stripped and len(stripped) <= MAX_ANSWER else None


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for i in range(start, len(text)):
        if text[i] == "\\":
            continue
        escaped = i > 0 and text[i - 1] == "\\" and not (i > 1 and text[i - 2] == "\\")
        if text[i] == "{" and not escaped:
            depth += 1
        elif text[i] == "}" and not escaped:
            depth -= 1
            if not depth:
                return i
    return None


def _sentence(text: str) -> str:
    """Up to the end of the sentence; of a number followed by a comma and words, the number."""
    line = (text.strip().splitlines() or [""])[0].strip().strip("*").strip()
    number = re.match(r"[-+]?\$?\\?\$?[\d][\d,]*(?:\.\d+)?%?(?=$|[,.]?\s|[*])", line)
    if number and not re.match(r"\s*[-+*/^=,]?\s*\d", line[number.end() :]):
        return number[0].rstrip(",")
    return re.split(r"\.(?:\s|$)", line)[0].strip().strip("*")


_DROP = re.compile(
    r"\\[,;:! ]|\\(?:displaystyle|limits|quad|qquad|[bB]ig[lr]?)(?![a-zA-Z])"
    r"|\\left(?=[\[\](){}.\\|<])|\\right(?=[\[\](){}.\\|>])|[~$]|\\\$"
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox|textrm|mathbf|mathit|operatorname|emph)\s*\{([^{}]*)\}")


def clean(text: str) -> str:
    """The same answer without what only concerns its looks."""
    text = text.strip().strip("$").strip()
    text = re.sub(r"(?<=\d)\{,\}(?=\d)", "", text)
    text = re.sub(r"(?<=\d)(?:\\,|\\!|\\ |~|,\\!)(?=\d{3}(?!\d))", "", text)
    text = _DROP.sub(" ", text)
    for _ in range(3):
        text = _TEXT.sub(lambda m: m[1] if re.fullmatch(r"\w", m[1]) else f" {m[1]} ", text)
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("−", "-")
    text = re.sub(r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|°|\\degree", " degrees", text)
    text = (
        text.replace("\\%", "%")
        .replace("\\{", "⟨")
        .replace("\\}", "⟩")
        .replace("\\lbrace", "⟨")
        .replace("\\rbrace", "⟩")
    )
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"[.;,]+$", "", text) if not text.endswith("...") else text
    if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?%?(?: [a-z ]+)?", text):
        text = text.replace(",", "")
    if re.fullmatch(r"-?\d{1,3}( \d{3})+(\.\d+)?", text):
        text = text.replace(" ", "")
    return text


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer is: one of the kinds below."""

    kind: str
    """``value``, ``text``, ``list``, ``set``, ``bracket``, ``union``, ``equation``, ``matrix``, ``ratio`` or
    ``digits``."""
    parts: tuple[Any, ...] = ()
    unit: str = ""
    opening: str = ""
    closing: str = ""


_INFINITY: Node = ("sym", "oo")
_REALS = Answer("bracket", (Answer("value", (("neg", _INFINITY),)), Answer("value", (_INFINITY,))), "", "(", ")")


def read(text: str) -> Answer:
    """The answer that a cleaned text states; ``text`` where it is no mathematics."""
    if re.fullmatch(r"[-+]?\d+", text):
        sign = "-" if text[0] == "-" else ""
        return Answer("digits", (sign + (text.lstrip("+-").lstrip("0") or "0"),))
    for reader in (_matrix, _union, _relation, _based, _ratio, _listed, _enclosed, _value):
        found = reader(text)
        if found is not None:
            return found
    return Answer("text", (_words(text),))


def _words(text: str) -> str:
    return re.sub(r"[\s\\{}$.]+", " ", text).strip().casefold()


def _matrix(text: str) -> Answer | None:
    match = re.fullmatch(r"\\begin\s*\{[pbvBV]?(?:small)?matrix\}(.*)\\end\s*\{[pbvBV]?(?:small)?matrix\}", text, re.S)
    if not match:
        return None
    rows = [row for row in re.split(r"\\\\", match[1]) if row.strip()]
    return Answer("matrix", tuple(tuple(read(cell.strip()) for cell in row.split("&")) for row in rows))


def _union(text: str) -> Answer | None:
    if text in ("\\mathbb{R}", "\\R", "\\Reals", "ℝ", "\\mathbb R"):
        return _REALS
    if text in ("\\emptyset", "\\varnothing", "∅", "⟨⟩", "⟨ ⟩"):
        return Answer("set")
    parts = re.split(r"\\cup|∪", text)
    return Answer("union", tuple(read(p.strip()) for p in parts)) if len(parts) > 1 else None


_RELATION = re.compile(r"\\leq?(?![a-z])|\\geq?(?![a-z])|<=|>=|≤|≥|<|>|=")
_MEANING = {"\\le": "<=", "\\leq": "<=", "≤": "<=", "\\ge": ">=", "\\geq": ">=", "≥": ">="}


def _relation(text: str) -> Answer | None:
    inside = re.fullmatch(r"[a-zA-Z]\s*\\in\s*(.*)", text)
    if inside:
        return read(inside[1].strip())
    signs_ = [_MEANING.get(s, s) for s in _RELATION.findall(text)]
    if not signs_:
        return None
    sides = [side.strip() for side in _RELATION.split(text)]
    if signs_ == ["="]:
        if re.fullmatch(r"\\?[a-zA-Z]{1,8}(?:_\{?\w+\}?)?(?:\([a-z]\))?", sides[0]):
            return Answer("equation", (_side(sides[0]), _side(sides[1])), opening=sides[0], closing=sides[1])
        return Answer("equation", (_side(sides[0]), _side(sides[1])))
    return _interval(sides, signs_)


def _side(text: str) -> Node | None:
    try:
        return parse(text)
    except (ParseError, TooLarge, RecursionError):
        return None


def _interval(sides: list[str], relations: list[str]) -> Answer | None:
    nodes = [_side(side) for side in sides]
    if any(node is None for node in nodes) or "=" in relations:
        return None
    if len(sides) == 3 and all(r[0] == relations[0][0] for r in relations) and symbols(nodes[1]):  # type: ignore[arg-type]
        low, high, marks = nodes[0], nodes[2], relations
        if relations[0][0] == ">":
            low, high, marks = high, low, relations[::-1]
        brackets = ("[" if "=" in marks[0] else "(", "]" if "=" in marks[1] else ")")
    elif len(sides) == 2:
        relation = relations[0]
        left, right = nodes
        if not symbols(left):  # type: ignore[arg-type]  # 3 > x
            left, right = right, left
            relation = relation.translate(str.maketrans("<>", "><"))
        less, closed = relation[0] == "<", "=" in relation
        low, high = (("neg", _INFINITY), right) if less else (right, _INFINITY)
        brackets = ("(", "]" if closed else ")") if less else ("[" if closed else "(", ")")
    else:
        return None
    return Answer("bracket", (Answer("value", (low,)), Answer("value", (high,))), "", *brackets)


def _based(text: str) -> Answer | None:
    match = re.fullmatch(r"([0-9A-Z]+)_\{?\s*(\d{1,2})\s*\}?", text)
    return Answer("text", (f"{match[1].lstrip('0')}_{match[2]}",)) if match and match[1][0].isdigit() else None


def _ratio(text: str) -> Answer | None:
    parts = text.replace("\\colon", ":").split(":")
    if len(parts) == 1 or not all(re.fullmatch(r"\s*\d+(?:\.\d+)?\s*", p) for p in parts):
        return None
    return Answer("ratio", tuple(Fraction(p.strip()) for p in parts))


def _listed(text: str) -> Answer | None:
    text = re.sub(r",?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])\s*", ", ", text)
    parts = _split(text)
    if len(parts) > 1 and all(p.strip() for p in parts):
        return Answer("list", tuple(member for part in parts for member in _members(part.strip())))
    return None


def _members(text: str) -> list[Answer]:
    """The answers of one place of a list: two where it holds a plus-minus."""
    answer = read(text)
    return list(answer.parts) if answer.kind == "list" else [answer]


def _split(text: str) -> list[str]:
    """At commas and semicolons outside brackets."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += character in "([{⟨"
        depth -= character in ")]}⟩"
        if character in ",;" and depth <= 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _enclosed(text: str) -> Answer | None:
    pairs = {"(": ")]", "[": "])", "⟨": "⟩"}
    if len(text) < 2 or text[0] not in pairs or text[-1] not in pairs[text[0]] or _match(text) != len(text) - 1:
        return None
    parts = _split(text[1:-1])
    if text[0] == "⟨":
        return Answer("set", tuple(m for p in parts if p.strip() for m in _members(p.strip())))
    if len(parts) < 2:
        return None if text[0] == "(" or text[0] == "[" else Answer("set")
    return Answer("bracket", tuple(read(p.strip()) for p in parts), "", text[0], text[-1])


def _match(text: str) -> int:
    depth = 0
    for i, character in enumerate(text):
        depth += character in "([⟨"
        depth -= character in ")]⟩"
        if not depth:
            return i
    return -1


_UNIT = re.compile(
    r"(?<=[\d)}%!a-z])\s+(?P<unit>[a-zA-Z][a-zA-Z./ ]*(?:\^\{?[23]\}?)?)$"
    r"|(?<=\d)(?P<short>cm|mm|km|kg|ft)(?:\^\{?[23]\}?)?$"
)


def _value(text: str) -> Answer | None:
    unit = ""
    match = _UNIT.search(text)
    if match and not re.fullmatch(r"[a-z]", (match["unit"] or "").strip()):
        unit, text = " ".join(text[match.start() :].split()).casefold().rstrip(". "), text[: match.start()].strip()
    percent = text.endswith("%")
    node = _side(text[:-1].strip() if percent else text)
    if node is None:
        return None
    if percent:
        return Answer("value", (("div", node, ("num", Fraction(100))), node), "%")
    choices = signs(node)
    if len(choices) > 1:
        return Answer("list", tuple(Answer("value", (choice,), unit) for choice in choices))
    return Answer("value", (node,), unit)


def same(gold: Answer, answer: Answer) -> bool:
    """Whether two answers state the same."""
    gold, answer = _unwrapped(gold, answer), _unwrapped(answer, gold)
    if gold.kind == answer.kind == "digits":
        return gold.parts == answer.parts
    gold, answer = _as_value(gold), _as_value(answer)
    if "text" in (gold.kind, answer.kind):
        return gold.kind == answer.kind and gold.parts == answer.parts
    if gold.kind != answer.kind:
        return False
    if gold.kind == "value":
        return _same_value(gold, answer)
    if gold.kind in ("list", "set", "union"):
        return _same_members(gold.parts, answer.parts)
    if gold.kind == "bracket":
        tuples = len(gold.parts) != 2
        brackets = tuples or (gold.opening, gold.closing) == (answer.opening, answer.closing)
        return brackets and _pairwise(gold.parts, answer.parts)
    if gold.kind == "equation":
        return _same_equation(gold, answer)
    if gold.kind == "matrix":
        rows = zip(gold.parts, answer.parts, strict=False)
        return len(gold.parts) == len(answer.parts) and all(_pairwise(a, b) for a, b in rows)
    return gold.parts == answer.parts


def _unwrapped(one: Answer, other: Answer) -> Answer:
    """`x = 5` beside `5` is 5."""
    if one.kind == "equation" and one.opening and other.kind != "equation":
        return read(one.closing)
    return one


def _as_value(answer: Answer) -> Answer:
    if answer.kind != "digits":
        return answer
    digits = answer.parts[0]
    if len(digits) > 4000:
        return Answer("text", (digits,))
    return Answer("value", (("num", Fraction(int(digits))),))


def _same_value(gold: Answer, answer: Answer) -> bool:
    units = [gold.unit, answer.unit]
    if "%" in units:
        # 50% is 0.5, and a missing sign is forgiven: 50% is also 50.
        return (
            any(equal(a, b) for a in gold.parts for b in answer.parts)
            if units[0] != units[1]
            else equal(gold.parts[0], answer.parts[0])
        )
    if all(units) and _unit(units[0]) != _unit(units[1]):
        return False
    return equal(gold.parts[0], answer.parts[0])


_UNITS = {
    "centimeters": "cm", "centimeter": "cm", "centimetres": "cm", "meters": "m", "meter": "m", "metres": "m",
    "kilometers": "km", "kilometer": "km", "hours": "hour", "hrs": "hour", "minutes": "minute", "mins": "minute",
    "seconds": "second", "degrees": "degree", "inches": "inch", "feet": "foot", "grams": "g", "gram": "g",
}  # fmt: skip


def _unit(name: str) -> str:
    name = re.sub(r"[{}.\s]", "", name)
    return _UNITS.get(name, name.removesuffix("s") if len(name) > 3 else name)


def _pairwise(one: Sequence[Answer], other: Sequence[Answer]) -> bool:
    return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))


def _same_members(one: Sequence[Answer], other: Sequence[Answer]) -> bool:
    """The same members in any order."""
    if len(one) != len(other) or len(one) > 64:
        return False
    rest = list(other)
    for member in one:
        found = next((i for i, candidate in enumerate(rest) if same(member, candidate)), None)
        if found is None:
            return False
        del rest[found]
    return True


def _same_equation(gold: Answer, answer: Answer) -> bool:
    if gold.opening and gold.opening == answer.opening:
        return same(read(gold.closing), read(answer.closing))
    sides = (*gold.parts, *answer.parts)
    if any(side is None for side in sides):
        return False
    a, b = (("add", left, ("neg", right)) for left, right in (gold.parts, answer.parts))
    return proportional(a, b)
