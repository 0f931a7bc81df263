"""A step of the decoder, described in the words of the engine: each layer, part by part."""
