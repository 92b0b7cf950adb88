"""The other end of a ``rows`` link, in a process of its own that a test may stop or kill:
``peer.py PORT`` reads identities on standard input, dials and sends what it is asked to."""

from __future__ import annotations

import struct
import sys
import time

import msgspec
import torch

from inference.engine.stages.row_link import HEADER, RowLink
from inference.protocol.load import LinkIdentity
from inference.stage_links.dialling import dial

NUM_FEATURES = 64


class Order(msgspec.Struct):
    identity: LinkIdentity
    stage: str
    port: int
    sends: str


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    connection = dial(("127.0.0.1", order.port), order.identity, order.stage, "rows", timeout_s=60)
    link = RowLink(connection, NUM_FEATURES, is_narrow=True)
    link.send(1, torch.ones(3, NUM_FEATURES))
    match order.sends:
        case "half a header":
            connection.sendall(HEADER.pack(2, 2, 3, NUM_FEATURES)[:7])
        case "half its rows":
            connection.sendall(HEADER.pack(2, 2, 3, NUM_FEATURES) + bytes(NUM_FEATURES))
        case "too many rows":
            connection.sendall(HEADER.pack(2, 2, 2**31, NUM_FEATURES))
        case "rows of another model":
            connection.sendall(HEADER.pack(2, 2, 3, NUM_FEATURES + 1))
        case "garbage":
            connection.sendall(struct.pack("<Q", 2**63) + bytes(range(256)) * 40)
        case "a flood":
            for number in range(2, 200):
                link.send(number, torch.ones(4096, NUM_FEATURES))
        case "end of file":
            connection.close()
    print("sent", flush=True)
    time.sleep(120)


if __name__ == "__main__":
    main()
