"""Arithmetic on numbers written as text, by walking the parsed expression; nothing is ever evaluated as code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

from llmlab.client.tool import ToolFailed

MAX_CHARS = 500
MAX_DEPTH = 50
MAX_EXPONENT = 1_000
MAX_BITS = 4_096
"""Integers beyond this size are refused before they are computed."""

Number = int | float

BINARY: Mapping[type, Callable[[Number, Number], Number]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)
UNARY: Mapping[type, Callable[[Number], Number]] = MappingProxyType({ast.UAdd: operator.pos, ast.USub: operator.neg})


def calculate(expression: str) -> Number:
    """The value of numbers joined by ``+ - * / // % **`` and parentheses.

    Raises ``ToolFailed`` for anything else, for results that are too large, and for division by zero.
    """
    if len(expression) > MAX_CHARS:
        raise ToolFailed(f"the expression has {len(expression)} characters, and {MAX_CHARS} are the most")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body, 0)
        str(value)  # an integer may be too long to be written
    except (SyntaxError, MemoryError, RecursionError):
        raise ToolFailed("not an arithmetic expression") from None
    except (ArithmeticError, ValueError) as error:
        raise ToolFailed(str(error) or type(error).__name__) from None
    return value


def _value(node: ast.AST, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise ToolFailed(f"parentheses and signs are nested more than {MAX_DEPTH} deep")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return UNARY[type(node.op)](_value(node.operand, depth + 1))
    if isinstance(node, ast.BinOp):
        return _combine(node.op, _value(node.left, depth + 1), _value(node.right, depth + 1))
    raise ToolFailed("only numbers, parentheses and + - * / // % ** are understood")


def _combine(op: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(op, ast.Pow):
        return _power(left, right)
    if type(op) not in BINARY:
        raise ToolFailed("only numbers, parentheses and + - * / // % ** are understood")
    return _bounded(BINARY[type(op)](left, right))


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > MAX_EXPONENT:
        raise ToolFailed(f"exponents go up to {MAX_EXPONENT}")
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise ToolFailed(f"the result would have more than {MAX_BITS} bits")
    value = base**exponent
    if isinstance(value, complex):
        raise ToolFailed("the result is not a real number")
    return _bounded(value)


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ToolFailed(f"the result has more than {MAX_BITS} bits")
    return value
