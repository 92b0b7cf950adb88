"""Messages between processes: requests, events, load specs, heartbeats, Redis key names.

Imports no torch, no Django, no Redis: the gateway, the neuron and the engine process all use it.

    gateway ──Submit/Cancel──▶ neuron inbox (Redis list)      inference.protocol.generation
    gateway ◀──EventBatch───── neuron (Redis stream)          inference.protocol.events
    neuron  ──EngineCommand──▶ engine process (socket pair)   inference.protocol.engine
    neuron  ◀──EngineMessage── engine process
    neuron  ──NeuronHeartbeat─▶ Redis key ──▶ gateway, control inference.protocol.heartbeat
    control ──LoadSpec───────▶ neuron (Celery)                inference.protocol.load

Frozen msgspec structs.
"""
