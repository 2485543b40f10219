"""Layers of a transformer: attention and a small network, each with a norm and a shortcut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.core.errors import DTypeError
from pullback.module import Module
from pullback.nn.activations import gelu
from pullback.nn.dropout import dropout as dropped
from pullback.nn.layers.attention import MultiheadAttention
from pullback.nn.layers.linear import Linear
from pullback.nn.layers.normalisation import LayerNorm
from pullback.nn.rectifiers import relu
from pullback.ops.random import split

__all__ = ["TransformerDecoderLayer", "TransformerEncoderLayer"]


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": relu, "gelu": gelu}


def _activation(given: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    if not isinstance(given, str):
        return given
    if given not in ACTIVATIONS:
        raise DTypeError(
            f"Transformer: activation must be 'relu', 'gelu' or a function, got {given!r}."
        )
    return ACTIVATIONS[given]


class TransformerLayer(Module):
    """What both kinds have in common: the small network, dropout, and where norms stand."""

    def _set(
        self, d_model: int, dim_feedforward: int, dropout: float, activation: Any, eps: float,
        norm_first: bool, keys: Any, dtype: Any,
    ) -> None:  # fmt: skip
        self.linear1 = Linear(d_model, dim_feedforward, key=keys[0], dtype=dtype)
        self.linear2 = Linear(dim_feedforward, d_model, key=keys[1], dtype=dtype)
        self.norm1 = LayerNorm(d_model, eps, dtype=dtype)
        self.norm2 = LayerNorm(d_model, eps, dtype=dtype)
        self.dropout, self.norm_first = dropout, norm_first
        self.activation = _activation(activation)

    def _dropped(self, x: Any, training: bool, key: Any) -> Any:
        return dropped(x, self.dropout, training, key=key)

    def _block(self, x: Any, norm: Any, part: Callable[[Any], Any]) -> Any:
        """A shortcut around `part`, with the norm before or behind."""
        return x + part(norm(x)) if self.norm_first else norm(x + part(x))

    def _network(self, x: Any, training: bool, keys: Any) -> Any:
        hidden = self._dropped(self.activation(self.linear1(x)), training, keys[0])
        return self._dropped(self.linear2(hidden), training, keys[1])


def _keys(key: Any, count: int) -> Any:
    return [None] * count if key is None else list(split(key, count))


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention, then a network of two linear layers.

    >>> layer = pb.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, key=pb.random.key(0))
    >>> layer(pb.ones((3, 5, 8)), is_causal=True).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        *,
        key: Any,
        dtype: Any = None,
    ):
        keys = split(key, 3)
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, batch_first=batch_first, key=keys[2], dtype=dtype
        )
        self._set(
            d_model, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, keys,
            dtype,
        )  # fmt: skip

    def __call__(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        *,
        is_causal: bool = False,
        training: bool = False,
        key: Any = None,
    ) -> Any:
        keys = _keys(key, 4)

        def attended(x: Any) -> Any:
            found, _ = self.self_attn(
                x, x, x, key_padding_mask=src_key_padding_mask, need_weights=False,
                attn_mask=src_mask, is_causal=is_causal, training=training, dropout_key=keys[0],
            )  # fmt: skip
            return self._dropped(found, training, keys[1])

        x = self._block(src, self.norm1, attended)
        return self._block(x, self.norm2, lambda h: self._network(h, training, keys[2:]))


class TransformerDecoderLayer(TransformerLayer):
    """Self-attention, attention to `memory`, then a network of two linear layers.

    >>> layer = pb.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, key=pb.random.key(0))
    >>> layer(pb.ones((3, 5, 8)), pb.ones((3, 7, 8)), tgt_is_causal=True).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        *,
        key: Any,
        dtype: Any = None,
    ):
        keys = split(key, 4)
        options = {"batch_first": batch_first, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, key=keys[2], **options)
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, key=keys[3], **options)
        self._set(
            d_model, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, keys,
            dtype,
        )  # fmt: skip
        self.norm3 = LayerNorm(d_model, layer_norm_eps, dtype=dtype)

    def __call__(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        *,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        training: bool = False,
        key: Any = None,
    ) -> Any:
        keys = _keys(key, 6)

        def to_itself(x: Any) -> Any:
            found, _ = self.self_attn(
                x, x, x, key_padding_mask=tgt_key_padding_mask, need_weights=False,
                attn_mask=tgt_mask, is_causal=tgt_is_causal, training=training,
                dropout_key=keys[0],
            )  # fmt: skip
            return self._dropped(found, training, keys[1])

        def to_memory(x: Any) -> Any:
            found, _ = self.multihead_attn(
                x, memory, memory, key_padding_mask=memory_key_padding_mask, need_weights=False,
                attn_mask=memory_mask, is_causal=memory_is_causal, training=training,
                dropout_key=keys[2],
            )  # fmt: skip
            return self._dropped(found, training, keys[3])

        x = self._block(tgt, self.norm1, to_itself)
        x = self._block(x, self.norm2, to_memory)
        return self._block(x, self.norm3, lambda h: self._network(h, training, keys[4:]))
