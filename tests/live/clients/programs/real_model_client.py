"""A real model of embeddings behind the server."""

import litellm
from features import API_KEY, BASE_URL, feature, same
from langchain_openai import OpenAIEmbeddings

EMBEDDING_MODEL = "all-minilm-l6-v2"
TEXTS = ["A man is eating.", "Someone has a meal."]


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
