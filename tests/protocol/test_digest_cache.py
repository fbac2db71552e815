"""What is remembered of bytes that others sent takes as much memory however long they are."""

import tracemalloc

from protocol.digest_cache import DigestCache


def test_the_findings_unused_for_longest_go():
    cache = DigestCache[str](3)
    for number in range(3):
        cache.put(bytes([number]), str(number))
    assert cache.get(b"\0") == "0"
    cache.put(b"\3", "3")
    assert [cache.get(bytes([number])) for number in range(4)] == ["0", None, "2", "3"]


def test_long_bytes_take_no_more_memory_than_short_ones():
    cache = DigestCache[str](1000)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(2000):
        cache.put(number.to_bytes(4) * 6000, "QmSomebody")
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(cache.found) == 1000
    assert after - before < 1000 * 512
