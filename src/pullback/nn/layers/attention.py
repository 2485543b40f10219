"""Attention with several heads and its projections."""

from __future__ import annotations

from typing import Any

from pullback.core.errors import ShapeError
from pullback.module import Module
from pullback.nn import init
from pullback.nn.attention.multihead import multi_head_attention
from pullback.nn.layers.linear import Linear, check_sizes
from pullback.ops.creation import zeros
from pullback.ops.random import split

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """`pb.nn.multi_head_attention` with its projections: (result, weights or None).

    >>> layer = pb.nn.MultiheadAttention(8, 2, batch_first=True, key=pb.random.key(0))
    >>> x = pb.ones((3, 5, 8))
    >>> layer(x, x, x, need_weights=False)[0].shape
    (3, 5, 8)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        key: Any,
        dtype: Any = None,
    ):
        check_sizes("MultiheadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ShapeError(
                f"MultiheadAttention: num_heads must divide embed_dim, got {num_heads} heads for"
                f" {embed_dim}."
            )
        self.num_heads, self.dropout, self.batch_first = num_heads, dropout, batch_first
        keys = split(key, 4)
        sizes = {"q": embed_dim, "k": kdim or embed_dim, "v": vdim or embed_dim}
        if set(sizes.values()) == {embed_dim}:
            shape = (3 * embed_dim, embed_dim)
            self.in_proj_weight = init.xavier_uniform(keys[0], shape, dtype=dtype)
        else:
            for (name, size), own in zip(sizes.items(), keys[:3], strict=True):
                weight = init.xavier_uniform(own, (embed_dim, size), dtype=dtype)
                setattr(self, f"{name}_proj_weight", weight)
            self.in_proj_weight = None
        self.in_proj_bias = zeros(3 * embed_dim, dtype=dtype) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, key=keys[3], dtype=dtype)
        if bias:
            self.out_proj.bias = zeros(embed_dim, dtype=dtype)

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        training: bool = False,
        dropout_key: Any = None,
    ) -> Any:
        weight = self.in_proj_weight
        if weight is None:
            weight = tuple(getattr(self, f"{n}_proj_weight") for n in "qkv")
        return multi_head_attention(
            query, key, value, self.num_heads, weight, self.in_proj_bias,
            self.out_proj.weight, self.out_proj.bias,
            key_padding_mask=key_padding_mask, need_weights=need_weights, attn_mask=attn_mask,
            average_attn_weights=average_attn_weights, is_causal=is_causal,
            dropout_p=self.dropout if training else 0.0, dropout_key=dropout_key,
            batch_first=self.batch_first,
        )  # fmt: skip
