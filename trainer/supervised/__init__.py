"""Supervised learning: warm-ups and demonstrations."""
