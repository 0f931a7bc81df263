"""The operations of a decoder, part by part."""
