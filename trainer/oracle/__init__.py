"""The oracle study: credit methods on a fixed policy, against a reference that was measured."""
