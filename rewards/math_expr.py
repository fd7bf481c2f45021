"""Mathematical expressions as written in answers, LaTeX or plain: parsed, and compared without guessing.

Numbers are exact fractions wherever they can be. What is not rational is compared by mpmath at two
precisions, what has symbols at several points. Work is bounded before it is done: a power or factorial
that would be too large raises `TooLarge`, and nothing here ever runs a general simplifier.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import mpmath

Node = tuple[Any, ...]
"""``("num", Fraction)``, ``("sym", name)``, ``(operation, Node, ...)`` or ``("fn", name, Node, ...)``."""

MAX_TOKENS = 600
MAX_BITS = 200_000
"""Of an exact number."""
MAX_DIGITS = 4000
"""Of a literal: Python refuses to read longer ones."""

_FUNCTIONS = (
    *("arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "sin", "cos", "tan", "cot", "sec", "csc"),
    *("log", "ln", "lg", "exp", "sqrt", "abs"),
)
_TOKEN = re.compile(
    r"\s*(?:(?P<num>\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)|(?P<cmd>\\[a-zA-Z]+|\\.)|(?P<word>[a-zA-Z]+)|(?P<op>\*\*|.))",
    re.S,
)
_GREEK = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu", "rho", "sigma", "tau"),
    *("phi", "chi", "psi", "omega", "varphi"),
)


class ParseError(ValueError):
    """The text is no expression."""


class TooLarge(ArithmeticError):
    """The exact or numeric value would need too much work."""


def parse(text: str) -> Node:
    """The expression of a text.

    Raises:
        ParseError: it is none, or it is too long.
    """
    parser = _Parser(text)
    node = parser.sum()
    if parser.at < len(parser.tokens):
        raise ParseError(f"unexpected {parser.tokens[parser.at][1]!r}")
    return node


class _Parser:
    """Recursive descent. Juxtaposition is multiplication; a whole number before a fraction is a mixed number."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ParseError(text[at:])
            kind = match.lastgroup or "op"
            self.tokens += self._words(match[kind]) if kind == "word" else [(kind, match[kind])]
            at = match.end()
            if len(self.tokens) > MAX_TOKENS:
                raise ParseError("the expression is too long")
        self.at = 0
        self.bars = 0
        """Open bars of absolute values: inside, a bar closes."""

    @staticmethod
    def _words(word: str) -> list[tuple[str, str]]:
        """Function names and pi stay whole; up to three other letters are a product, more are a word."""
        if word in _FUNCTIONS or word in ("pi", "infinity", "oo"):
            return [("cmd", "\\" + word)]
        for name in (*_FUNCTIONS, "pi"):
            if word.endswith(name) and len(word) - len(name) == 1:
                return [("word", word[0]), ("cmd", "\\" + name)]
        if len(word) > 3:
            raise ParseError(f"{word!r} is a word")
        return [("word", letter) for letter in word]

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self, value: str | None = None) -> tuple[str, str]:
        token = self.peek()
        if token[0] == "end" or (value is not None and token[1] != value):
            raise ParseError(f"{value or 'more'} expected, not {token[1]!r}")
        self.at += 1
        return token

    def accept(self, *values: str) -> bool:
        if self.peek()[1] in values and self.peek()[0] != "end":
            self.at += 1
            return True
        return False

    def sum(self) -> Node:
        node = self._signed()
        while True:
            if self.accept("+"):
                node = ("add", node, self.product())
            elif self.accept("-", "−"):
                node = ("add", node, ("neg", self.product()))
            elif self.accept("\\pm", "±"):
                node = ("pm", node, self.product())
            else:
                return node

    def _signed(self) -> Node:
        if self.accept("-", "−"):
            return ("neg", self._signed_product())
        if self.accept("+"):
            return self._signed_product()
        if self.accept("\\pm", "±"):
            return ("pm", ("num", Fraction(0)), self.product())
        return self.product()

    def _signed_product(self) -> Node:
        return self._signed() if self.peek()[1] in ("-", "−", "+") else self.product()

    def product(self) -> Node:
        node = self.power()
        while True:
            kind, value = self.peek()
            if self.accept("*", "\\cdot", "\\times", "×", "·"):
                node = ("mul", node, self._factor())
            elif self.accept("/", "\\div", "÷"):
                node = ("div", node, self._factor())
            elif self._starts_factor(kind, value):
                right = self.power()
                node = ("add", node, right) if self._mixed(node, right) else ("mul", node, right)
            else:
                return node

    def _factor(self) -> Node:
        return ("neg", self._factor()) if self.accept("-", "−") else self.power()

    def _starts_factor(self, kind: str, value: str) -> bool:
        if kind == "cmd":
            return value not in ("\\right", "\\over", "\\pm", "\\cdot", "\\times", "\\div")
        return kind in ("num", "word") or value in ("(", "{", "[") or (value == "|" and not self.bars)

    @staticmethod
    def _mixed(left: Node, right: Node) -> bool:
        whole = left[0] == "num" and left[1].denominator == 1 and left[1] > 0
        proper = right[0] == "div" and len(right) == 4 and all(part[0] == "num" for part in right[1:3])
        return whole and proper and 0 < right[1][1] < right[2][1]

    def power(self) -> Node:
        node = self.postfix()
        if self.accept("^", "**"):
            exponent = ("neg", self.argument()) if self.accept("-", "−") else self.argument()
            node = ("pow", node, exponent)
            while self.accept("!"):
                node = ("fact", node)
        return node

    def postfix(self) -> Node:
        node = self.atom()
        while self.accept("!"):
            node = ("fact", node)
        return node

    def argument(self) -> Node:
        """What an exponent applies to: a group or one token; `x^10` means the tenth power."""
        if self.peek()[1] in ("{", "("):
            return self.atom()
        return self.postfix()

    def digit_or_group(self) -> Node:
        """What `\\frac` takes: a group or one digit, so that `\\frac12` is a half."""
        kind, value = self.peek()
        if kind == "num" and len(value) > 1 and value.isdigit():
            self.tokens[self.at : self.at + 1] = [("num", digit) for digit in value]
        return self.atom()

    def atom(self) -> Node:
        kind, value = self.take()
        if kind == "num":
            return self._number(value)
        if kind == "word":
            return ("sym", value + self._subscript())
        if kind == "cmd":
            return self._command(value[1:])
        if value in ("(", "["):
            node = self.sum()
            if not self.accept(")", "]"):
                raise ParseError("a bracket is not closed")
            return node
        if value == "{":
            node = self.sum()
            if self.accept("\\over"):
                node = ("div", node, self.sum(), "frac")
            self.take("}")
            return node
        if value == "|":
            self.bars += 1
            node = self.sum()
            self.take("|")
            self.bars -= 1
            return ("fn", "abs", node)
        symbols = {"π": "pi", "∞": "oo"}
        if value in symbols:
            return ("sym", symbols[value])
        if value == "√":
            return ("fn", "sqrt", self.argument())
        raise ParseError(f"unexpected {value!r}")

    def _number(self, text: str) -> Node:
        if len(text) > MAX_DIGITS:
            raise TooLarge("a literal is too long")
        mantissa, _, exponent = text.lower().partition("e")
        if abs(int(exponent or 0)) > MAX_DIGITS:
            raise TooLarge("a literal is too large")
        node: Node = (
            "num",
            Fraction(mantissa + "0" if mantissa.endswith(".") else mantissa) * Fraction(10) ** int(exponent or 0),
        )
        # `2 1/4`: a plain fraction of two whole numbers directly after a whole number.
        ahead = self.tokens[self.at : self.at + 3]
        if len(ahead) == 3 and [k for k, _ in ahead] == ["num", "op", "num"] and ahead[1][1] == "/":
            top, bottom = ahead[0][1], ahead[2][1]
            if text.isdigit() and top.isdigit() and bottom.isdigit() and 0 < int(top) < int(bottom):
                self.at += 3
                return ("add", node, ("num", Fraction(int(top), int(bottom))))
        return node

    def _subscript(self) -> str:
        if not self.accept("_"):
            return ""
        if self.accept("{"):
            parts = []
            while not self.accept("}"):
                parts.append(self.take()[1])
            return "_" + "".join(parts)
        return "_" + self.take()[1]

    def _command(self, name: str) -> Node:
        if name in ("frac", "dfrac", "tfrac", "cfrac"):
            top = self.digit_or_group()
            return ("div", top, self.digit_or_group(), "frac")
        if name == "sqrt":
            if self.accept("["):
                root = self.sum()
                self.take("]")
                return ("pow", self.atom(), ("div", ("num", Fraction(1)), root))
            return ("fn", "sqrt", self.atom())
        if name in ("binom", "dbinom", "tbinom"):
            top = self.digit_or_group()
            return ("fn", "binom", top, self.digit_or_group())
        if name == "left":
            opening = self.take()[1]
            node = self.sum()
            self.take("\\right")
            self.take()
            return ("fn", "abs", node) if opening == "|" else node
        if name in ("infty", "infinity", "oo"):
            return ("sym", "oo")
        if name == "pi" or name in _GREEK:
            return ("sym", name + self._subscript())
        if name in ("operatorname", "mathrm"):
            self.take("{")
            word = ""
            while not self.accept("}"):
                word += self.take()[1].lstrip("\\")
            return self._command(word) if word in _FUNCTIONS else ("sym", word)
        if name in _FUNCTIONS:
            return self._function(name)
        raise ParseError(f"\\{name} is not known")

    def _function(self, name: str) -> Node:
        base = None
        if self.accept("_"):
            base = self.digit_or_group()
        power = self.digit_or_group() if self.accept("^") else None
        node: Node = ("fn", name, self._operand()) if base is None else ("fn", name, self._operand(), base)
        return node if power is None else ("pow", node, power)

    def _operand(self) -> Node:
        """Of a function without brackets: `sin 2x` is sin(2x)."""
        if self.peek()[1] in ("(", "{", "\\left", "[", "|"):
            return self.atom()
        node = self.power()
        while self.peek()[0] in ("num", "word") or self.peek()[1] == "\\pi":
            node = ("mul", node, self.power())
        return node


def symbols(node: Node) -> set[str]:
    """Free symbols; constants are none."""
    if node[0] == "sym":
        return set() if node[1] in ("pi", "e", "i", "oo") else {node[1]}
    return {name for part in node[1:] if isinstance(part, tuple) for name in symbols(part)}


def signs(node: Node) -> list[Node]:
    """The node with each plus-minus taken both ways: one or two expressions."""
    if not _has(node, "pm"):
        return [node]
    return [_choose(node, sign) for sign in (1, -1)]


def _has(node: Node, kind: str) -> bool:
    return node[0] == kind or any(_has(part, kind) for part in node[1:] if isinstance(part, tuple))


def _choose(node: Node, sign: int) -> Node:
    parts = [_choose(part, sign) if isinstance(part, tuple) else part for part in node[1:]]
    if node[0] == "pm":
        return ("add", parts[0], parts[1] if sign > 0 else ("neg", parts[1]))
    return (node[0], *parts)


def exact(node: Node) -> Fraction | None:
    """The rational value; ``None`` where there is none.

    Raises:
        TooLarge, ZeroDivisionError
    """
    kind = node[0]
    if kind == "num":
        return node[1]
    if kind == "sym":
        return None
    arguments = [exact(part) for part in node[1:] if isinstance(part, tuple)]
    if any(a is None for a in arguments):
        return None
    values: list[Fraction] = [a for a in arguments if a is not None]
    if kind == "neg":
        return -values[0]
    if kind == "add":
        return values[0] + values[1]
    if kind == "mul":
        return values[0] * values[1]
    if kind == "div":
        return values[0] / values[1]
    if kind == "pow":
        return _power(values[0], values[1])
    if kind == "fact":
        return Fraction(math.factorial(_whole(values[0], 20_000)))
    if node[1] == "binom":
        return Fraction(math.comb(_whole(values[0], 20_000), _whole(values[1], 20_000)))
    if node[1] == "abs":
        return abs(values[0])
    if node[1] == "sqrt":
        return _power(values[0], Fraction(1, 2))
    return None


def _whole(value: Fraction, limit: int) -> int:
    if value.denominator != 1 or value < 0:
        raise ParseError(f"{value} is no whole number")
    if value > limit:
        raise TooLarge(f"{value} is over {limit}")
    return int(value)


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator == 1:
        if base in (0, 1, -1) and exponent >= 0:
            return base ** int(exponent % 2 or (2 if exponent else 0)) if base else Fraction(int(exponent == 0))
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(exponent) > MAX_BITS:
            raise TooLarge("a power is too large")
        return base ** int(exponent)
    if base < 0 or exponent.denominator > 64:
        return None
    top, bottom = (_root(n, exponent.denominator) for n in (base.numerator, base.denominator))
    if top is None or bottom is None:
        return None
    return _power(Fraction(top, bottom), Fraction(exponent.numerator))


def _root(n: int, k: int) -> int | None:
    if n.bit_length() > 4096:
        return None
    low, high = 0, 1 << (n.bit_length() // k + 1)
    while low < high:
        middle = (low + high) // 2
        if middle**k < n:
            low = middle + 1
        else:
            high = middle
    return low if low**k == n else None


def numeric(node: Node, values: dict[str, Any]) -> Any:
    """The value in mpmath's current precision.

    Raises:
        TooLarge, ZeroDivisionError, ValueError
    """
    kind = node[0]
    if kind == "num":
        return mpmath.mpf(node[1].numerator) / node[1].denominator
    if kind == "sym":
        constants = {"pi": mpmath.pi, "e": mpmath.e, "i": mpmath.j, "oo": mpmath.inf}
        return +constants[node[1]] if node[1] in constants else values[node[1]]
    arguments = [numeric(part, values) for part in node[1:] if isinstance(part, tuple)]
    grows = kind in ("pow", "fact") or (kind == "fn" and node[1] not in ("abs", "sqrt"))
    if grows and abs(arguments[-1]) > 1e6:
        raise TooLarge("an argument is too large")
    if kind == "neg":
        return -arguments[0]
    if kind == "add":
        return arguments[0] + arguments[1]
    if kind == "mul":
        return arguments[0] * arguments[1]
    if kind == "div":
        return arguments[0] / arguments[1]
    if kind == "pow":
        return mpmath.power(*arguments)
    if kind == "fact":
        return mpmath.factorial(arguments[0])
    return _call(node[1], arguments)


def _call(name: str, arguments: list[Any]) -> Any:
    if name in ("log", "ln", "lg"):
        value = mpmath.log(arguments[0])
        base = arguments[1] if len(arguments) > 1 else {"lg": mpmath.mpf(10)}.get(name)
        return value if base is None else value / mpmath.log(base)
    table = {
        "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan, "abs": abs, "binom": mpmath.binomial,
    }  # fmt: skip
    return (table.get(name) or getattr(mpmath, name))(*arguments)


_POINTS = (Fraction(137, 100), Fraction(-73, 100), Fraction(291, 100), Fraction(41, 100), Fraction(-223, 100))


def equal(a: Node, b: Node) -> bool:
    """Whether two expressions are the same number, or the same function of their symbols."""
    try:
        left, right = exact(a), exact(b)
        if left is not None and right is not None:
            return left == right
        free = sorted(symbols(a) | symbols(b))
        if not free:
            return all(_close(a, b, {}, digits) for digits in (50, 150))
        return _same_at_points(a, b, free)
    except (ZeroDivisionError, ValueError, TypeError, KeyError, OverflowError, mpmath.libmp.NoConvergence):
        return a == b
    except TooLarge:
        return a == b


def _same_at_points(a: Node, b: Node, free: list[str]) -> bool:
    agreed = 0
    for shift in range(len(_POINTS)):
        values = {
            name: mpmath.mpf(point.numerator) / point.denominator
            for i, name in enumerate(free)
            for point in [_POINTS[(i * 2 + shift) % len(_POINTS)] + Fraction(i, 7)]
        }
        try:
            if not _close(a, b, values, 40):
                return False
            agreed += 1
        except (ZeroDivisionError, ValueError):
            continue
    return agreed >= 3


def _close(a: Node, b: Node, values: dict[str, Any], digits: int) -> bool:
    with mpmath.workdps(digits):
        left, right = numeric(a, values), numeric(b, values)
        if mpmath.isinf(left) or mpmath.isinf(right):
            return bool(left == right)
        size = max(abs(left), abs(right))
        return bool(abs(left - right) <= size * mpmath.mpf(10) ** (10 - digits))


def proportional(a: Node, b: Node) -> bool:
    """Whether ``a = 0`` and ``b = 0`` are the same equation: one is a constant multiple of the other."""
    free = sorted(symbols(a) | symbols(b))
    ratios = []
    try:
        for shift in range(len(_POINTS)):
            values = {n: mpmath.mpf(float(_POINTS[(2 * i + shift) % 5]) + i / 7) for i, n in enumerate(free)}
            with mpmath.workdps(40):
                left, right = numeric(a, values), numeric(b, values)
                if abs(right) < mpmath.mpf(10) ** -30:
                    if abs(left) > mpmath.mpf(10) ** -30:
                        return False
                    continue
                ratios.append(left / right)
        with mpmath.workdps(40):
            return len(ratios) >= 2 and all(
                abs(r - ratios[0]) <= abs(ratios[0]) * mpmath.mpf(10) ** -25 and r != 0 for r in ratios
            )
    except (ArithmeticError, ValueError, TypeError, KeyError):
        return a == b
