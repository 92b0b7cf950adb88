"""Endpoints of others that speak OpenAI's, Anthropic's or Ollama's API: the row as plain data, its
rules, its secret, and queries of the endpoint.

    Upstream (fleet.models) ──▶ UpstreamEntry ──▶ http ─┬▶ discovery   which models it has
                                                        ├▶ probe       what works of its API
                                                        └▶ the gateway's requests

Every read of an endpoint is bounded in bytes and time, redirects are refused, and no address from
its answers is ever fetched.
"""
