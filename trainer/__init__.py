"""The only package that imports torch: it trains agents with the credit methods of twinstats."""
