"""The lock that sessions of one model share."""

import itertools
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


def test_nobody_who_comes_back_at_once_overtakes() -> None:
    """Two threads that do nothing but take the lock take it in turns."""
    lock = FairLock()
    taken: list[int] = []
    ready = threading.Barrier(2)

    def greedy(number: int) -> None:
        ready.wait()
        for _ in range(200):
            with lock:
                taken.append(number)
                time.sleep(0.0002)

    threads = [threading.Thread(target=greedy, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    changes = sum(a != b for a, b in itertools.pairwise(taken))
    assert changes > 300
