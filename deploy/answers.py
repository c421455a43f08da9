"""Whether one of some URLs answers with 200: a health check for an image without curl.

    python answers.py http://127.0.0.1:8400/health https://127.0.0.1:8400/health
    python answers.py --wait http://vllm-0.vllm:8000/health    # until one does

Exit code 0 where one does, 1 where none does. A certificate is looked at, except on this machine's
own loopback address, which none names.
"""

import argparse
import ssl
import sys
import time
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

SECONDS = 3
LOOPBACK = "127.0.0.1"


def answers(url: str) -> bool:
    """Whether GET brings 200; no proxy is asked."""
    trust = ssl.create_default_context()
    if urlsplit(url).hostname == LOOPBACK:
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    try:
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=trust))
        with opener.open(url, timeout=SECONDS) as reply:
            return reply.status == 200
    except (URLError, OSError, ValueError):
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--wait", action="store_true")
    options = parser.parse_args()
    while not any(answers(url) for url in options.urls):
        if not options.wait:
            sys.exit(1)
        time.sleep(SECONDS)


if __name__ == "__main__":
    main()
