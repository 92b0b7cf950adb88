"""Redis as the transport between gateways and neurons. Its keys are ``inference.protocol.keys``'s.

    gateway ── InboxFrame ─▶ helexa:neuron:<name>:frames ─▶ neuron            inbox.py
    gateway ◀─ EventBatch ── helexa:neuron:<name>:events:<gateway> ◀─ neuron  event_reader.py

Both are streams of msgpack; a neuron writes keys of its own name alone, and adds only to streams
that their gateways have made. A large frame or event takes several entries. Each side resends what
Redis has not acknowledged, and drops duplicates.

What can be lost, and what repairs it:

    the ring, which wakes a neuron    its heartbeat drains the inbox each second as well
    a frame, or the last event        lists of held requests: open here and not held there fails,
                                      held there and not open here is cancelled   neurons.py
    a batch                           the next one's number: the neuron's requests fail
    a neuron                          its heartbeat expires, or another epoch beats: its requests
                                      fail; those that it was preparing, by its marks, for good
    a gateway                         its key expires: neurons cancel its requests, and its bills
                                      are in its spool
    Redis, for a while                both sides wait for it, up to the stall's limit
    what Redis held                   the gateway's marker is missing: whatever is open fails, and
                                      the streams are made again
"""
