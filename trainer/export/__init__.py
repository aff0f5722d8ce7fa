"""A trained policy for others: a Hugging Face folder with its model card."""
