"""Real models behind the server: the default one, and one of embeddings."""

import litellm
from features import API_KEY, BASE_URL, URL, feature, holds, same
from langchain_openai import OpenAIEmbeddings

CHAT_MODEL, EMBEDDING_MODEL = "smollm2-135m-instruct", "all-minilm-l6-v2"
TEXTS = ["A man is eating.", "Someone has a meal."]

for provider, base_url in (("openai", BASE_URL), ("anthropic", URL)):

    @feature(f"litellm {provider}: answer of the default model")
    def _(provider=provider, base_url=base_url):
        answer = litellm.completion(
            model=f"{provider}/{CHAT_MODEL}",
            api_base=base_url,
            api_key=API_KEY,
            max_tokens=50,
            temperature=0,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
        )
        holds("Paris" in answer.choices[0].message.content, answer)


@feature("litellm: embeddings")
def _():
    made = litellm.embedding(
        model=f"openai/{EMBEDDING_MODEL}", input=TEXTS, api_base=BASE_URL, api_key=API_KEY
    )
    same([len(one["embedding"]) for one in made.data], [384, 384])


@feature("langchain-openai: embeddings")
def _():
    """The client does not check lengths: else it would send the token ids of its own tokenizer to a
    server that is not OpenAI's."""
    model = OpenAIEmbeddings(
        model=EMBEDDING_MODEL,
        base_url=BASE_URL,
        api_key=API_KEY,
        check_embedding_ctx_length=False,
    )
    same([len(one) for one in model.embed_documents(TEXTS)], [384, 384])
