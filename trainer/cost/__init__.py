"""What a run will cost before it is started: memory of a GPU, tokens and seconds of a step.

`shape` knows models, `tokens` what a step samples, `memory` and `seconds` what that takes. Nothing
is loaded and nothing is measured: numbers follow from the configuration and from assumptions, each
of which is a named constant. `estimate` puts them together.
"""
