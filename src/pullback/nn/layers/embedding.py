"""Rows of a table by index."""

from __future__ import annotations

from typing import Any

from pullback.module import Module
from pullback.nn import embeddings, init
from pullback.nn.layers.linear import check_sizes

__all__ = ["Embedding", "EmbeddingBag"]


class Embedding(Module):
    """A table of vectors, looked up by index; its gradient has the same bits on every run.

    >>> layer = pb.nn.Embedding(10, 4, key=pb.random.key(0))
    >>> layer(pb.tensor([[1, 2], [3, 3]])).shape
    (2, 2, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        key: Any,
        dtype: Any = None,
    ):
        check_sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.padding_idx = padding_idx
        self.weight = init.normal(key, (num_embeddings, embedding_dim), dtype=dtype)
        if padding_idx is not None:
            self.weight[padding_idx] = 0.0

    def __call__(self, input: Any) -> Any:
        return embeddings.embedding(input, self.weight, self.padding_idx)


class EmbeddingBag(Module):
    """Sums or means of rows of a table, one for each bag of indices: `pb.nn.embedding_bag`.

    >>> layer = pb.nn.EmbeddingBag(10, 4, mode="sum", key=pb.random.key(0))
    >>> layer(pb.tensor([[1, 2, 3], [4, 5, 6]])).shape
    (2, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        key: Any,
        dtype: Any = None,
        **options: Any,
    ):
        check_sizes("EmbeddingBag", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.weight = init.normal(key, (num_embeddings, embedding_dim), dtype=dtype)
        self.options = options

    def __call__(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        return embeddings.embedding_bag(
            input, self.weight, offsets, per_sample_weights=per_sample_weights, **self.options
        )
