"""Compiled functions for web pages: `export_web` of what `pb.jit` made."""

from pullback.web.export import export_web

__all__ = ["export_web"]
