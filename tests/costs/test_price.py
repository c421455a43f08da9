"""A price list: read, refused, and reckoned with exactly."""

from decimal import Decimal
from pathlib import Path

import pytest

from edgewise.costs.price import BilledTokens, Price, price_of
from edgewise.errors import UsageError

LIST = 'input = 0.28\ncached = "0.028"\noutput = 0.42\n'


def test_three_numbers() -> None:
    price = price_of("0.28, 0.028,0.42")
    assert price == Price(input=Decimal("0.28"), cached=Decimal("0.028"), output=Decimal("0.42"))
    # 1,000 x 0.28 + 500 x 0.028 + 10 x 0.42, a millionth of it.
    assert price.of(BilledTokens(input=1000, cached=500, output=10)) == Decimal("0.0002982")


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(LIST + 'currency = "USD"\ncached_from = 64\n')
    price = price_of(str(path))
    plain = price_of("0.28,0.028,0.42")
    assert (price.input, price.cached, price.output) == (plain.input, plain.cached, plain.output)
    assert (price.currency, price.cached_from) == ("USD", 64)


@pytest.mark.parametrize(
    "given",
    [
        *("1,2", "1", "1,0.1,2,3", "1,0.1,x", "", "-1,0,1", "1,nan,1", "1,0.1,inf", "1,0.1,1e7"),
        *(".", "1,0.1,1e999999", "1,0.1,0.0000001", "1,0.1,1e-999999", "1,2,3"),
    ],
)
def test_what_is_not_a_price(given: str) -> None:
    with pytest.raises(UsageError) as refused:
        price_of(given)
    assert refused.value.setting == "price"
    assert "IN,CACHED,OUT" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        LIST.replace("input", "inptu"),
        LIST + "currency = 3",
        LIST + 'currency = "123456789"',
        LIST + 'currency = "\\u001b[2J"',
        LIST + "cached_from = 0",
        LIST + "cached_from = 1.5",
        LIST + "more = 1",
        "input = nan\ncached = 0\noutput = 1",
        'input = "NaN"\ncached = 0\noutput = 1',
        "input = -1\ncached = 0\noutput = 1",
        "input = true\ncached = 0\noutput = 1",
        "input = 1\ncached = 0",
        "[input]",
        "\x00",
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        price_of(str(path))
    assert refused.value.setting == "price"
