"""A server that wants a key, and clients that have another one.

A client on the same machine needs none, so they come as if through a proxy.
"""

import litellm
from features import BASE_URL, MODEL, URL, feature, refusal, same
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

HEADERS = {"x-forwarded-for": "192.0.2.1"}

for provider, base_url in (("openai", BASE_URL), ("anthropic", URL)):

    @feature(f"litellm {provider}: wrong key")
    def _(provider=provider, base_url=base_url):
        error = refusal(
            lambda: litellm.completion(
                model=f"{provider}/{MODEL}",
                api_base=base_url,
                api_key="wrong",
                extra_headers=HEADERS,
                messages=[{"role": "user", "content": "Say hello"}],
            )
        )
        same(type(error).__name__, "AuthenticationError")


for make, base_url in ((ChatOpenAI, BASE_URL), (ChatAnthropic, URL)):

    @feature(f"{make.__name__}: wrong key")
    def _(make=make, base_url=base_url):
        settings = {"base_url": base_url, "api_key": "wrong", "max_retries": 0}
        model = make(model=MODEL, default_headers=HEADERS, **settings)
        same(refusal(lambda: model.invoke("Say hello")).status_code, 401)
