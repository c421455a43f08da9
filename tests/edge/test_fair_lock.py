"""The lock that sessions of one model share."""

import threading
import time

from edgewise.edge.kv import FairLock


def test_threads_are_served_in_the_order_of_their_coming() -> None:
    lock = FairLock()
    order: list[int] = []

    def one(number: int) -> None:
        with lock:
            order.append(number)

    with lock:
        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
            time.sleep(0.01)
    for thread in threads:
        thread.join(60)
    assert order == list(range(8))
