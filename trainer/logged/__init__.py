"""Episodes that were sampled elsewhere: read, and credited."""
