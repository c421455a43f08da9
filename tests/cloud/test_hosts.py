"""A cloud at a host that is not allowed: refused before any connection, wherever it was named."""

import pytest

from edgewise.cloud.hosts import hosts_of, require_allowed
from edgewise.errors import UsageError
from edgewise.pair import Pair
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise
from tests.visited import visited

LISTED = """
good.example            http://good.example
good.example            https://good.example:8080/v1
Good.Example.           http://GOOD.example./
a.example,good.example:443  https://good.example
good.example:8080       http://good.example:8080
10.0.0.2                http://10.0.0.2:9
[::1]:80                http://[::1]
[::1]                   http://[::1]:7
up                      made://up
"""
UNLISTED = r"""
http://evil.example             http://good.example.evil.example    http://sub.good.example
http://good.example@evil.example http://evil.example\@good.example  http://evil.example#@good.example
http://evil.example?good.example http://good.example:8081           https://good.example
http://good.example:x           http://[::1                         http://
://good.example                 http://ɡood.example  http://good.example%00.evil.example
"""


@pytest.mark.parametrize("row", LISTED.strip().splitlines())
def test_what_is_listed_is_allowed(row: str) -> None:
    hosts, url = row.split()
    require_allowed(url, hosts_of(hosts.replace(",", ", ")))
    require_allowed(url, None)


@pytest.mark.parametrize("url", UNLISTED.split())
def test_what_is_not_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        require_allowed(url, hosts_of("good.example:80"))
    assert refused.value.setting == "cloud_hosts"
    assert "(good.example:80)" in refused.value.message


@pytest.mark.parametrize(
    "listed",
    ["", " , ", "a b", "http://a", "a/b", "a@b", "a:x", "a:99999", "*", "*.a", "a?b", "::"],
)
def test_a_list_that_is_none_is_refused(listed: str) -> None:
    with pytest.raises(UsageError, match=r"^cloud-hosts names"):
        hosts_of(listed)
    with pytest.raises(UsageError, match=r"^cloud-hosts names"):
        Pair(ScriptedEdge(noise()), cloud="none", cloud_hosts=listed)


def test_a_pair_connects_to_no_other_host_and_judges_no_open_cloud() -> None:
    with visited() as (url, came):
        for engine in ("auto", "llama-server", "vllm", "sglang", "gateway"):
            with pytest.raises(UsageError, match=r"a\.example"):
                Pair(ScriptedEdge(noise()), cloud=url, cloud_engine=engine, cloud_hosts="a.example")
    assert came == []
    with pytest.raises(UsageError, match="cloud-hosts"):
        Pair(ScriptedEdge(noise()), cloud=ScriptedCloud(noise()), cloud_hosts="good.example")
