"""A provider's price list. Prices have at most six decimals; costs are exact, as `Decimal`s."""

import os
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from edgewise.addresses import from_home
from edgewise.errors import UsageError
from edgewise.settings import file_bytes

MAX_PRICE = 1_000_000
"""The highest price, in money per million tokens."""

# A token then costs a multiple of 10**-12, and sums are exact.
_PLACES = 6
_MILLIONTH = Decimal("0.000001")


class BilledTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts as a provider bills them: `input` (uncached prompt), `cached` prompt, `output`.

    `estimated`: some figures are estimates, since a usage report was missing or incomplete, or the
    cloud's tokenizer is unknown.
    """

    input: int = 0
    cached: int = 0
    output: int = 0
    estimated: bool = False

    def __add__(self, other: "BilledTokens") -> "BilledTokens":
        return BilledTokens(
            input=self.input + other.input,
            cached=self.cached + other.cached,
            output=self.output + other.output,
            estimated=self.estimated or other.estimated,
        )


NOTHING = BilledTokens()
"""No tokens at all."""


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices per million tokens in `currency`: `input` (uncached) and `cached` prompt, `output`.

    `cached_from`: the provider caches recent prompts of at least so many tokens; give at least the
    size of a block of its cache. To estimate a request's cost, the last request's prompt is
    expected in the cache, but for its last `cached_from` tokens. With None, or once fewer tokens
    than expected were found there, as many as were found last are expected, but none right after
    such a miss. Raises `UsageError` if a field is invalid.
    """

    input: Decimal
    cached: Decimal
    output: Decimal
    currency: Annotated[str, Meta(max_length=8)] = ""
    cached_from: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None

    def __post_init__(self) -> None:
        for name in ("input", "cached", "output"):
            price: Decimal = getattr(self, name)
            if not price.is_finite() or not 0 <= price <= MAX_PRICE:
                raise _wrong(
                    f"The price of {name} tokens must be from 0 to {MAX_PRICE:,} per million, "
                    f"not {price}"
                )
            if price != round(price, _PLACES):
                raise _wrong(f"The price of {name} tokens has more than six decimals")
        if self.cached > self.input:
            raise _wrong("Cached input tokens cost more than uncached ones")
        if not self.currency.isprintable():
            raise _wrong("The currency has characters that cannot be shown")

    def of(self, billed: BilledTokens) -> Decimal:
        """Return what these tokens cost, in units of `currency`."""
        tokens = (
            billed.input * self.input + billed.cached * self.cached + billed.output * self.output
        )
        return tokens * _MILLIONTH


def price_of(given: str) -> Price:
    """Return the `Price` for `given`: "IN,CACHED,OUT" or a TOML file. Raises `UsageError`."""
    parts = given.split(",")
    try:
        numbers = [Decimal(part.strip()) for part in parts]
    except InvalidOperation:
        return _read(from_home(given))
    if len(numbers) != 3:
        raise _wrong(f"The price {given!r} does not have three numbers")
    return Price(input=numbers[0], cached=numbers[1], output=numbers[2])


def _read(path: Path) -> Price:
    if not os.path.isfile(path):
        raise _wrong(f"The price {str(path)!r} is neither three numbers nor a file")
    called = f"The price list {str(path)!r}"
    try:
        return msgspec.toml.decode(file_bytes(path, called), type=Price)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _wrong(f"{called} is not valid ({error})") from error


def _wrong(message: str) -> UsageError:
    return UsageError(
        message,
        hint="give IN,CACHED,OUT, money per million tokens, or a TOML file with input, cached and "
        "output",
        setting="price",
    )
