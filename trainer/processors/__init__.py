"""Keyed noise inside other people's engines: one logits processor for each of their interfaces.

Every processor does the same: it draws the token itself, from the request's key, temperature and
truncation (`request`), and leaves that token as the only one the engine can take.
"""
