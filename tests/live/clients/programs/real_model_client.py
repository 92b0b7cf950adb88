"""A real model behind the server: one of embeddings."""

import litellm
from features import API_KEY, BASE_URL, feature, same
from langchain_openai import OpenAIEmbeddings

MODEL = "all-minilm-l6-v2"
TEXTS = ["A man is eating.", "Someone has a meal."]


@feature("litellm: embeddings")
def _():
    at = {"api_base": BASE_URL, "api_key": API_KEY}
    made = litellm.embedding(model=f"openai/{MODEL}", input=TEXTS, **at)
    same([len(one["embedding"]) for one in made.data], [384, 384])


@feature("langchain-openai: embeddings")
def _():
    """The client does not check lengths: else it would send the token ids of its own tokenizer to a
    server that is not OpenAI's."""
    at = {"base_url": BASE_URL, "api_key": API_KEY, "check_embedding_ctx_length": False}
    made = OpenAIEmbeddings(model=MODEL, **at).embed_documents(TEXTS)
    same([len(one) for one in made], [384, 384])
