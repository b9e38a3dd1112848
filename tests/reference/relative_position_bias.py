import math

from tests.reference.rotary import rotate_vector


def toeplitz(table, distance, bidirectional):
    if bidirectional:
        max_length = (len(table) + 1) // 2
        distance = max(-(max_length - 1), min(max_length - 1, distance))
        return table[distance + max_length - 1][0]
    max_length = len(table)
    distance = max(-(max_length - 1), min(0, distance))
    return table[distance + max_length - 1][0]


def rotary(query_vector, key_vector, distance, bidirectional):
    if not bidirectional:
        distance = min(distance, 0)
    return float(rotate_vector(query_vector, 0) @ rotate_vector(key_vector, distance))


def t5(table, distance, bidirectional, max_distance=128):
    buckets, offset = len(table), 0
    if bidirectional:
        buckets //= 2
        if distance > 0:
            offset = buckets
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return table[offset + distance][0]
    far = math.log(distance / exact) / math.log(max_distance / exact)
    return table[offset + min(exact + int(far * (buckets - exact)), buckets - 1)][0]
