"""Spans of requests, sent to an OpenTelemetry collector where ``OTEL_EXPORTER_OTLP_ENDPOINT`` names
one. Without it OpenTelemetry is not imported, and no request has spans.

    start        starts them, or not
    exporter     batches spans and sends them, beside the requests
    spans        the spans of one request: its own, its placement, its attempts and their stages
    stages       pure: where on this gateway's clock a neuron's stages were
    attributes   pure: the attributes of a request's span, by OpenTelemetry's GenAI conventions

    chat tiny                      the request, in the trace of its client's ``traceparent``
    ├─ placement                   until a replica or an upstream has a place for it
    ├─ neuron beast                an attempt, from its ``Submit`` to its last event
    │  ├─ neuron prepare
    │  ├─ engine queue
    │  ├─ engine prefill
    │  └─ engine decode
    └─ chat gpt-5                  an attempt at an upstream, which is sent its ``traceparent``

The gateway makes all of them. Neurons report durations and no times, so their clocks may differ.
"""
